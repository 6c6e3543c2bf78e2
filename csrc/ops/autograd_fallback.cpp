// Lets operators without a derivative formula run on device `ipu`, as PyTorch does on all other
// devices. Only back-propagation through such an operator is an error or a warning.

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, AutogradIPU, m) {
  m.fallback(torch::autograd::basicAutogradNotImplementedFallback());
}
