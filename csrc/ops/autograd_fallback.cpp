// PyTorch gives every device but `ipu` a way to call operators that have no formula for their
// derivative: they run, and only back-propagation through them is an error or a warning.

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, AutogradIPU, m) {
  m.fallback(torch::autograd::basicAutogradNotImplementedFallback());
}
