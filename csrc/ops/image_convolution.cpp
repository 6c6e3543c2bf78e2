// Gradients of a channels-last convolution with a 1 x 1 kernel and a stride above 1.
//
// Without AVX-512, oneDNN writes beyond the gradients of weight and bias in this case (PyTorch
// 2.13) and overwrites other memory. Skipped pixels do not contribute to these gradients, so that
// they equal the gradients of a convolution with stride 1 over the remaining pixels. PyTorch's
// default layout is not affected.

#include <ATen/ops/convolution_backward.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "common/vectors.h"
#include "numerics/channels_last.h"

namespace poptorch_emu {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using OptionalSizes = c10::OptionalArrayRef<int64_t>;

constexpr int64_t kHeight = 2, kWidth = 3;

bool are_all(at::IntArrayRef values, int64_t wanted) {
  return std::all_of(values.begin(), values.end(), [&](int64_t value) { return value == wanted; });
}

bool is_of_pixels(const at::Tensor& weight) {
  return c10::multiply_integers(weight.sizes().slice(2)) == 1;
}

// Computes the same as `convolution_backward`, from the same arguments.
Gradients image_convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                     const at::Tensor& weight, OptionalSizes bias_sizes,
                                     at::IntArrayRef stride, at::IntArrayRef padding,
                                     at::IntArrayRef dilation, bool transposed,
                                     at::IntArrayRef output_padding, int64_t groups,
                                     std::array<bool, 3> mask) {
  const auto gradients = [&](const at::Tensor& x, at::IntArrayRef steps,
                             std::array<bool, 3> wanted) {
    return at::convolution_backward(gradient, x, weight, bias_sizes, steps, padding, dilation,
                                    transposed, output_padding, groups, wanted);
  };
  const bool skips = is_of_pixels(weight) && !are_all(stride, 1);
  const bool is_plain = !transposed && are_all(padding, 0);
  if (!(mask[1] || mask[2]) || !skips || !is_plain || vectors::width() == 512) {
    return gradients(input, stride, mask);
  }
  // A stride with one number applies to both dimensions.
  const at::Tensor taken = channels_last(input.slice(kHeight, 0, std::nullopt, stride.front())
                                             .slice(kWidth, 0, std::nullopt, stride.back()));
  at::Tensor of_input;
  if (mask[0]) of_input = std::get<0>(gradients(input, stride, {true, false, false}));
  auto rest = gradients(taken, {1, 1}, {false, mask[1], mask[2]});
  std::get<0>(rest) = std::move(of_input);
  return rest;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "image_convolution_backward(Tensor gradient, Tensor input, Tensor weight, int[]? "
      "bias_sizes, int[] stride, int[] padding, int[] dilation, bool transposed, int[] "
      "output_padding, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("image_convolution_backward", &poptorch_emu::image_convolution_backward);
}
