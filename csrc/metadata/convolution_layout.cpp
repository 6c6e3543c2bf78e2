#include "metadata/convolution_layout.h"

#include <ATen/Functions.h>
#include <ATen/native/ConvUtils.h>

#include <cstddef>
#include <vector>

namespace poptorch_emu::metadata {
namespace {

constexpr int64_t kOneDim = 3;  // dimensions of a batch of rows
constexpr int64_t kHeight = 2;

// Returns a CPU tensor without memory; nothing reads its elements.
Tensor on_cpu(IntArrayRef sizes, IntArrayRef strides, ScalarType dtype) {
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto options = at::TensorOptions(at::kCPU).dtype(is_half ? at::kFloat : dtype);
  return at::from_blob(nullptr, sizes, strides, options);
}

Tensor on_cpu(const Tensor& x) { return on_cpu(x.sizes(), x.strides(), x.scalar_type()); }

// Inserts a value for the height, so that sizes, strides or settings of rows apply to images.
std::vector<int64_t> with_height(IntArrayRef values, size_t place, int64_t height) {
  std::vector<int64_t> result = values.vec();
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(place), height);
  return result;
}

// Returns rows as images of height 1, as PyTorch's convolution does.
Tensor as_images(const Tensor& x, IntArrayRef strides) {
  const auto sizes = with_height(x.sizes(), kHeight, 1);
  return on_cpu(sizes, with_height(strides, kHeight, x.size(kHeight) * strides[kHeight]),
                x.scalar_type());
}

c10::SymIntArrayRef symbolic(IntArrayRef values) { return c10::fromIntArrayRefSlow(values); }

}  // namespace

ConvolutionLayout::ConvolutionLayout(const Tensor& input, const Tensor& weight,
                                     const OptionalTensor& bias, at::OptionalIntArrayRef bias_sizes,
                                     IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                     bool is_transposed, IntArrayRef output_padding, int64_t groups)
    : dtype_(input.scalar_type()) {
  const bool is_of_rows = input.dim() == kOneDim;
  // PyTorch makes 1-d rows contiguous before it convolves them.
  const Tensor images =
      is_of_rows ? as_images(input, at::meta::empty(input.sizes(), on_meta(dtype_)).strides())
                 : on_cpu(input);
  const Tensor kernel = is_of_rows ? as_images(weight, weight.strides()) : on_cpu(weight);
  const auto setting = [&](IntArrayRef values, int64_t of_height) {
    return is_of_rows ? with_height(values, 0, of_height) : values.vec();
  };
  const auto steps = setting(stride, 1), rims = setting(padding, 0);
  const auto gaps = setting(dilation, 1), added = setting(output_padding, 0);
  const OptionalTensor bias_on_cpu =
      is_given(bias) ? OptionalTensor(on_cpu(*bias)) : OptionalTensor();
  const auto sizes_of_bias =
      bias_sizes ? at::OptionalSymIntArrayRef(symbolic(*bias_sizes)) : at::OptionalSymIntArrayRef();
  const auto backend = at::native::select_conv_backend(
      images, kernel, bias_on_cpu, symbolic(steps), symbolic(rims), symbolic(gaps), is_transposed,
      symbolic(added), groups, sizes_of_bias);
  format_ = at::native::_determine_backend_memory_format(images, kernel, backend);
}

Tensor ConvolutionLayout::empty(IntArrayRef sizes) const {
  if (sizes.size() != kOneDim) return at::meta::empty(sizes, on_meta(dtype_), format_);
  const Tensor images = at::meta::empty(with_height(sizes, kHeight, 1), on_meta(dtype_), format_);
  std::vector<int64_t> strides = images.strides().vec();
  strides.erase(strides.begin() + kHeight);
  return strided(sizes, strides, dtype_);
}

}  // namespace poptorch_emu::metadata
