// Max pooling of images that lie channels last: PyTorch's numbers and indices, to the bit.
//
// PyTorch's kernel of this layout goes through the channels of each place one by one where they are
// few, and always notes where the maxima are, also where nobody asks for it.

#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>

#include "common/for_each_cpu.h"
#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/channels_last.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu::pooling {
namespace {

using at::Tensor;

// What a window covers of an image: rows and columns of places, which have all channels each and
// are numbered as they lie.
struct Patch {
  int64_t first;
  int64_t rows, columns;
  int64_t row_step, column_step;
};

namespace kernels {

// Takes the first of equal numbers, and the last NaN. Notes where they are if asked to.
POPTORCH_EMU_FOR_EACH_CPU void take_maxima(const Patch& patch, int64_t channels, const float* image,
                                           float* __restrict__ y, int64_t* __restrict__ indices) {
  std::fill_n(y, channels, -std::numeric_limits<float>::infinity());
  if (indices != nullptr) std::fill_n(indices, channels, patch.first);
  for (int64_t row = 0; row < patch.rows; ++row) {
    for (int64_t column = 0; column < patch.columns; ++column) {
      const int64_t place = patch.first + row * patch.row_step + column * patch.column_step;
      const float* const __restrict__ x = image + place * channels;
      if (indices == nullptr) {
        for (int64_t c = 0; c < channels; ++c) y[c] = x[c] > y[c] || x[c] != x[c] ? x[c] : y[c];
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        const bool is_next = x[c] > y[c] || x[c] != x[c];
        y[c] = is_next ? x[c] : y[c];
        indices[c] = is_next ? place : indices[c];
      }
    }
  }
}

#if POPTORCH_EMU_COMPILES_VECTORS

constexpr int64_t kLanes = vectors::Registers<vectors::Avx512>::kLanes;

// The first channels, up to as many as a register has.
POPTORCH_EMU_INLINE __mmask16 first_channels(int64_t count) {
  return count >= kLanes ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
}

POPTORCH_EMU_AVX512 POPTORCH_EMU_INLINE void store_as_int64(int64_t* to, int64_t count,
                                                            __m512i values) {
  std::array<int32_t, kLanes> lanes;
  _mm512_storeu_si512(lanes.data(), values);
  if (count >= kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) to[c] = lanes[c];
  } else {
    for (int64_t c = 0; c < count; ++c) to[c] = lanes[c];
  }
}

// The same. A patch with a NaN is left to the other.
template <bool kHasIndices>
POPTORCH_EMU_AVX512 void take_maxima_by_masks(const Patch& patch, int64_t channels,
                                              const float* image, float* y, int64_t* indices) {
  const __m512i column_step = _mm512_set1_epi32(static_cast<int32_t>(patch.column_step));
  for (int64_t c = 0; c < channels; c += kLanes) {
    const __mmask16 mask = first_channels(channels - c);
    __m512 maxima = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 sum = _mm512_setzero_ps();  // NaN if one of the numbers is
    __m512i places = _mm512_set1_epi32(static_cast<int32_t>(patch.first));
    for (int64_t row = 0; row < patch.rows; ++row) {
      const int64_t first = patch.first + row * patch.row_step;
      const float* x = image + first * channels + c;
      __m512i place = _mm512_set1_epi32(static_cast<int32_t>(first));
      for (int64_t column = 0; column < patch.columns; ++column) {
        const __m512 next = _mm512_maskz_loadu_ps(mask, x);
        if constexpr (kHasIndices) {
          const __mmask16 is_next = _mm512_cmp_ps_mask(next, maxima, _CMP_GT_OQ);
          places = _mm512_mask_mov_epi32(places, is_next, place);
          place = _mm512_add_epi32(place, column_step);
        }
        maxima = _mm512_mask_max_ps(maxima, mask, next, maxima);  // Of equal ones the second.
        sum = _mm512_add_ps(sum, next);
        x += patch.column_step * channels;
      }
    }
    if (_mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0) {
      return take_maxima(patch, channels, image, y, indices);
    }
    _mm512_mask_storeu_ps(y + c, mask, maxima);
    if constexpr (kHasIndices) store_as_int64(indices + c, channels - c, places);
  }
}

#endif

}  // namespace kernels

// Returns the kernel for images of so many places.
auto maxima_taker(int64_t num_places, bool has_indices) {
#if POPTORCH_EMU_COMPILES_VECTORS
  if (vectors::width() == 512 && num_places <= std::numeric_limits<int32_t>::max()) {
    return has_indices ? kernels::take_maxima_by_masks<true> : kernels::take_maxima_by_masks<false>;
  }
#endif
  return &kernels::take_maxima;
}

// One dimension of the windows over an image.
struct Axis {
  Axis(int64_t image_size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
       bool ceil_mode)
      : image_size(image_size),
        kernel(kernel),
        stride(stride),
        padding(padding),
        dilation(dilation),
        size(at::native::pooling_output_shape(image_size, kernel, padding, stride, dilation,
                                              ceil_mode)) {}

  // The first place of a window that is not before the image, and how many are in it. The next
  // place after the last one would be at `kernel * dilation`.
  int64_t first(int64_t window) const {
    const int64_t begin = window * stride - padding;
    return begin >= 0 ? begin : begin + (dilation - 1 - begin) / dilation * dilation;
  }
  int64_t count(int64_t window) const {
    const int64_t end = std::min(window * stride - padding + kernel * dilation, image_size);
    return std::max<int64_t>((end - first(window) + dilation - 1) / dilation, 0);
  }

  const int64_t image_size, kernel, stride, padding, dilation;
  const int64_t size;  // how many windows there are
};

int64_t item(at::IntArrayRef values, size_t place) {
  return values.size() == 1 ? values[0] : values[place];
}

// The windows over images of a shape.
class Pooling {
 public:
  Pooling(const Tensor& image, at::IntArrayRef kernel, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode)
      : channels_(image.size(1)),
        height_(axis(0, image, kernel, stride, padding, dilation, ceil_mode)),
        width_(axis(1, image, kernel, stride, padding, dilation, ceil_mode)) {
    at::native::pool2d_shape_check(
        image, height_.kernel, width_.kernel, height_.stride, width_.stride, height_.padding,
        width_.padding, height_.dilation, width_.dilation, channels_, height_.image_size,
        width_.image_size, height_.size, width_.size, at::MemoryFormat::ChannelsLast);
  }

  Tensor empty_result(const Tensor& image, at::ScalarType type) const {
    return at::empty({image.size(0), channels_, height_.size, width_.size},
                     image.options().dtype(type).memory_format(at::MemoryFormat::ChannelsLast));
  }

  // Writes the maxima of images that lie channels last, and where they are if asked to.
  void take_maxima(const Tensor& images, float* maxima, int64_t* indices) const {
    constexpr int64_t kFewestReads = int64_t{1} << 16;
    const int64_t num_places = height_.image_size * width_.image_size;
    const int64_t results = height_.size * width_.size * channels_;
    const int64_t grain = kFewestReads / (results * height_.kernel * width_.kernel) + 1;
    const auto take = maxima_taker(num_places, indices != nullptr);
    const auto* const values = images.const_data_ptr<float>();
    share_out(images.size(0), grain, [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        int64_t to = image * results;
        for (int64_t row = 0; row < height_.size; ++row) {
          for (int64_t column = 0; column < width_.size; ++column, to += channels_) {
            take(patch(row, column), channels_, values + image * num_places * channels_,
                 maxima + to, indices == nullptr ? nullptr : indices + to);
          }
        }
      }
    });
  }

 private:
  static Axis axis(int64_t dim, const Tensor& image, at::IntArrayRef kernel, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
    return {image.size(dim + 2), item(kernel, dim),   item(stride.empty() ? kernel : stride, dim),
            item(padding, dim),  item(dilation, dim), ceil_mode};
  }

  Patch patch(int64_t row, int64_t column) const {
    return {height_.first(row) * width_.image_size + width_.first(column), height_.count(row),
            width_.count(column), height_.dilation * width_.image_size, width_.dilation};
  }

  const int64_t channels_;
  const Axis height_, width_;
};

void check(const Tensor& image, const char* name) {
  TORCH_CHECK(image.dim() == 4 && image.scalar_type() == at::kFloat, name,
              " takes images of float32, not ", image.scalar_type(), image.sizes(), ".");
}

// The arguments of `aten::max_pool2d_with_indices`, and its first result.
Tensor max_pool(const Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  check(input, "poptorch_emu::image_max_pool");
  const Pooling windows(input, kernel_size, stride, padding, dilation, ceil_mode);
  const Tensor output = windows.empty_result(input, at::kFloat);
  windows.take_maxima(channels_last(input), output.mutable_data_ptr<float>(), nullptr);
  return output;
}

// Both its results.
std::tuple<Tensor, Tensor> max_pool_with_indices(const Tensor& input, at::IntArrayRef kernel_size,
                                                 at::IntArrayRef stride, at::IntArrayRef padding,
                                                 at::IntArrayRef dilation, bool ceil_mode) {
  check(input, "poptorch_emu::image_max_pool_with_indices");
  const Pooling windows(input, kernel_size, stride, padding, dilation, ceil_mode);
  const Tensor output = windows.empty_result(input, at::kFloat);
  const Tensor indices = windows.empty_result(input, at::kLong);
  windows.take_maxima(channels_last(input), output.mutable_data_ptr<float>(),
                      indices.mutable_data_ptr<int64_t>());
  return {output, indices};
}

}  // namespace
}  // namespace poptorch_emu::pooling

#pragma GCC pop_options

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "image_max_pool(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] "
      "dilation=1, bool ceil_mode=False) -> Tensor");
  m.def(
      "image_max_pool_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] "
      "padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("image_max_pool", poptorch_emu::pooling::max_pool);
  m.impl("image_max_pool_with_indices", poptorch_emu::pooling::max_pool_with_indices);
}
