// Replacements for PyTorch's small composite operators in a trace.
//
// All kernels here are registered at AutogradIPU, so that only the fake tensors of a trace reach
// them; nothing is ever computed on device `ipu`. Each kernel records operations that can be
// functionalised and have autograd and a CPU kernel.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/group_norm_native.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>
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

bool is_of_channels(const std::optional<at::Tensor>& affine, int64_t num_channels) {
  return !affine || !affine->defined() || affine->sizes() == at::IntArrayRef{num_channels};
}

at::Tensor contiguous_or_undefined(const std::optional<at::Tensor>& affine) {
  return affine && affine->defined() ? affine->contiguous() : at::Tensor();
}

// Returns images as they are, and their gradient in the order of memory that the images have.
struct GradientInOrder : torch::autograd::Function<GradientInOrder> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& images) {
    context->saved_data["format"] = static_cast<int64_t>(images.suggest_memory_format());
    return images;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto format = static_cast<at::MemoryFormat>(context->saved_data["format"].toInt());
    return {gradients[0].contiguous(format)};
  }
};

// PyTorch keeps images and their gradients channels last on the CPU only; on other devices it makes
// them contiguous.
at::Tensor record_group_norm(const at::Tensor& input, int64_t num_groups,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias, double eps,
                             bool cudnn_enabled) {
  const auto format = input.suggest_memory_format();
  if (format == at::MemoryFormat::Contiguous) {
    return at::native::group_norm(input, num_groups, weight, bias, eps, cudnn_enabled);
  }
  const int64_t num_images = input.size(0), num_channels = input.size(1);
  TORCH_CHECK(num_groups > 0 && num_channels % num_groups == 0, "group_norm: the input has ",
              num_channels, " channels; expected a multiple of the ", num_groups, " groups.");
  TORCH_CHECK(is_of_channels(weight, num_channels) && is_of_channels(bias, num_channels),
              "group_norm: expected a weight and a bias of shape [", num_channels,
              "], one element for each channel.");
  const int64_t num_places = c10::multiply_integers(input.sizes().slice(2));
  at::Tensor images = input.contiguous(format);
  if (images.requires_grad()) images = GradientInOrder::apply(images);
  return std::get<0>(at::native_group_norm(images, contiguous_or_undefined(weight),
                                           contiguous_or_undefined(bias), num_images, num_channels,
                                           num_places, num_groups, eps));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradIPU, m) {
  m.impl("dropout", record_dropout);
  m.impl("group_norm", record_group_norm);
  m.impl("rrelu", record_rrelu);
  m.impl("rrelu_", record_rrelu_);
}

}  // namespace poptorch_emu
