// Replacements for PyTorch's small composite operators in a trace.
//
// All kernels here are registered at AutogradIPU, so that only the fake tensors of a trace reach
// them; nothing is ever computed on device `ipu`. Each kernel records operations that can be
// functionalised and have autograd and a CPU kernel.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

namespace poptorch_emu {
namespace {

// Records dropout as one operation; PyTorch composes it of four on devices other than CUDA.
at::Tensor record_dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "dropout: p is ", p, "; expected a probability in [0, 1].");
  if (p == 0 || !train || input.numel() == 0) return input;
  return std::get<0>(at::native_dropout(input, p, train));
}

// Records rrelu without `rrelu_with_noise`, which writes to its argument `noise` in a way that
// cannot be functionalised.
at::Tensor record_rrelu(const at::Tensor& input, const at::Scalar& lower, const at::Scalar& upper,
                        bool training, std::optional<at::Generator> generator) {
  const double low = lower.toDouble();
  const double high = upper.toDouble();
  if (!training) return at::leaky_relu(input, (low + high) / 2);
  const at::Tensor slope = at::empty_like(input.detach()).uniform_(low, high, generator);
  return at::where(input > 0, input, input * slope);
}

at::Tensor& record_rrelu_(at::Tensor& input, const at::Scalar& lower, const at::Scalar& upper,
                          bool training, std::optional<at::Generator> generator) {
  return input.copy_(record_rrelu(input, lower, upper, training, std::move(generator)));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradIPU, m) {
  m.impl("dropout", record_dropout);
  m.impl("rrelu", record_rrelu);
  m.impl("rrelu_", record_rrelu_);
}

}  // namespace poptorch_emu
