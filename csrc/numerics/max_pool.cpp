// Max pooling with channels last. PyTorch's kernel processes few channels one by one, and always
// stores the positions of the maxima, even if they are not needed.

#include "numerics/max_pool.h"

#include <ATen/native/Pool.h>

#include <algorithm>
#include <array>
#include <limits>

#include "common/for_each_cpu.h"
#include "common/vectors.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace max_pool {
namespace {

// A row of windows. Positions are numbered in the order of the image's memory.
struct Windows {
  int64_t first;  // position of the first window's row
  int64_t rows, row_step;
  const MaxPool::Span* columns;  // columns of each window
  int64_t count;                 // number of windows
  int64_t column_step;

  // Returns these windows reduced to a single one.
  Windows window(int64_t index) const {
    return {first, rows, row_step, columns + index, 1, column_step};
  }
};

namespace kernels {

// Computes maxima; among equal numbers the first one counts, among NaNs the last. Stores positions
// unless `places` is null.
POPTORCH_EMU_FOR_EACH_CPU void take_maxima(const Windows& windows, int64_t channels,
                                           const float* image, float* maxima, int64_t* places) {
  for (int64_t window = 0; window < windows.count; ++window) {
    const MaxPool::Span columns = windows.columns[window];
    float* const __restrict__ y = maxima + window * channels;
    int64_t* const __restrict__ indices = places == nullptr ? nullptr : places + window * channels;
    std::fill_n(y, channels, -std::numeric_limits<float>::infinity());
    if (indices != nullptr) std::fill_n(indices, channels, windows.first + columns.first);
    for (int64_t row = 0; row < windows.rows; ++row) {
      for (int64_t column = 0; column < columns.count; ++column) {
        const int64_t place =
            windows.first + columns.first + row * windows.row_step + column * windows.column_step;
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
}

// Returns the maximum; a NaN stays. Computed without a branch.
POPTORCH_EMU_INLINE float larger(float x, float y) { return x > y || x != x ? x : y; }

// Writes the maximum of each of `count` columns, -inf without rows, which are `step` numbers apart.
// The ReLU keeps NaN.
POPTORCH_EMU_FOR_EACH_CPU void take_columns(const float* __restrict__ rows, int64_t num_rows,
                                            int64_t step, int64_t count, bool has_relu,
                                            float* __restrict__ largest) {
  if (num_rows == 0) std::fill_n(largest, count, -std::numeric_limits<float>::infinity());
  if (num_rows > 0) std::copy_n(rows, count, largest);
  for (int64_t row = 1; row < num_rows; ++row) {
    const float* const __restrict__ next = rows + row * step;
    for (int64_t x = 0; x < count; ++x) largest[x] = larger(next[x], largest[x]);
  }
  if (!has_relu) return;
  for (int64_t x = 0; x < count; ++x) largest[x] = largest[x] < 0.0f ? 0.0f : largest[x];
}

// Writes the maximum of each pair of neighbours.
POPTORCH_EMU_FOR_EACH_CPU void take_pairs(const float* __restrict__ numbers, int64_t count,
                                          float* __restrict__ maxima) {
  for (int64_t x = 0; x < count; ++x) maxima[x] = larger(numbers[2 * x + 1], numbers[2 * x]);
}

#if POPTORCH_EMU_COMPILES_VECTORS

constexpr int64_t kLanes = vectors::Registers<vectors::Avx512>::kLanes;

// Returns a mask of the first `count` channels, at most one register.
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

// Same as `take_maxima`, but leaves windows with a NaN to it.
template <bool kHasIndices>
POPTORCH_EMU_AVX512 void take_maxima_by_masks(const Windows& windows, int64_t channels,
                                              const float* image, float* maxima, int64_t* places) {
  const __m512i column_step = _mm512_set1_epi32(static_cast<int32_t>(windows.column_step));
  for (int64_t window = 0; window < windows.count; ++window) {
    const MaxPool::Span columns = windows.columns[window];
    const int64_t first = windows.first + columns.first;
    const int64_t to = window * channels;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const __mmask16 mask = first_channels(channels - c);
      __m512 largest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
      __m512 sum = _mm512_setzero_ps();  // becomes NaN if any number is NaN
      __m512i indices = _mm512_set1_epi32(static_cast<int32_t>(first));
      for (int64_t row = 0; row < windows.rows; ++row) {
        const int64_t begin = first + row * windows.row_step;
        const float* x = image + begin * channels + c;
        __m512i place = _mm512_set1_epi32(static_cast<int32_t>(begin));
        for (int64_t column = 0; column < columns.count; ++column) {
          const __m512 next = _mm512_maskz_loadu_ps(mask, x);
          if constexpr (kHasIndices) {
            const __mmask16 is_next = _mm512_cmp_ps_mask(next, largest, _CMP_GT_OQ);
            indices = _mm512_mask_mov_epi32(indices, is_next, place);
            place = _mm512_add_epi32(place, column_step);
          }
          largest = _mm512_mask_max_ps(largest, mask, next, largest);  // `largest` if equal
          sum = _mm512_add_ps(sum, next);
          x += windows.column_step * channels;
        }
      }
      if (_mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0) {
        take_maxima(windows.window(window), channels, image, maxima + to,
                    kHasIndices ? places + to : nullptr);
        break;
      }
      _mm512_mask_storeu_ps(maxima + to + c, mask, largest);
      if constexpr (kHasIndices) store_as_int64(places + to + c, channels - c, indices);
    }
  }
}

// Same for at least as many channels as a register of AVX2 has lanes. The last register of a
// window's channels overlaps the one before it, so that none is masked.
constexpr int64_t kNarrowLanes = vectors::Registers<vectors::Avx2>::kLanes;

template <bool kHasIndices>
POPTORCH_EMU_AVX2 void take_maxima_by_registers(const Windows& windows, int64_t channels,
                                                const float* image, float* maxima,
                                                int64_t* places) {
  const __m256i column_step = _mm256_set1_epi32(static_cast<int32_t>(windows.column_step));
  for (int64_t window = 0; window < windows.count; ++window) {
    const MaxPool::Span columns = windows.columns[window];
    const int64_t first = windows.first + columns.first;
    const int64_t to = window * channels;
    for (int64_t part = 0; part < channels; part += kNarrowLanes) {
      const int64_t c = std::min(part, channels - kNarrowLanes);
      __m256 largest = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
      __m256 sum = _mm256_setzero_ps();  // becomes NaN if any number is NaN
      __m256i indices = _mm256_set1_epi32(static_cast<int32_t>(first));
      for (int64_t row = 0; row < windows.rows; ++row) {
        const int64_t begin = first + row * windows.row_step;
        const float* x = image + begin * channels + c;
        __m256i place = _mm256_set1_epi32(static_cast<int32_t>(begin));
        for (int64_t column = 0; column < columns.count; ++column) {
          const __m256 next = _mm256_loadu_ps(x);
          if constexpr (kHasIndices) {
            const __m256i is_next = _mm256_castps_si256(_mm256_cmp_ps(next, largest, _CMP_GT_OQ));
            indices = _mm256_blendv_epi8(indices, place, is_next);
            place = _mm256_add_epi32(place, column_step);
          }
          largest = _mm256_max_ps(next, largest);  // `largest` if equal
          sum = _mm256_add_ps(sum, next);
          x += windows.column_step * channels;
        }
      }
      if (_mm256_movemask_ps(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q)) != 0) {
        take_maxima(windows.window(window), channels, image, maxima + to,
                    kHasIndices ? places + to : nullptr);
        break;
      }
      _mm256_storeu_ps(maxima + to + c, largest);
      if constexpr (kHasIndices) {
        auto* const out = reinterpret_cast<__m256i*>(places + to + c);
        _mm256_storeu_si256(out, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(indices)));
        _mm256_storeu_si256(out + 1, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(indices, 1)));
      }
    }
  }
}

#endif

}  // namespace kernels

int64_t item(at::IntArrayRef values, size_t place) {
  return values.size() == 1 ? values[0] : values[place];
}

}  // namespace
}  // namespace max_pool

MaxPool::Axis::Axis(int64_t image_size, int64_t kernel, int64_t stride, int64_t padding,
                    int64_t dilation, bool ceil_mode)
    : image_size(image_size), kernel(kernel), dilation(dilation) {
  const int64_t size =
      at::native::pooling_output_shape(image_size, kernel, padding, stride, dilation, ceil_mode);
  // The loop needs a positive dilation; `MaxPool` rejects dimensions without windows.
  for (int64_t window = 0; window < size && dilation > 0; ++window) {
    // First position of the window, which is moved into the image below, and the end of the window.
    int64_t first = window * stride - padding;
    const int64_t end = std::min(first + kernel * dilation, image_size);
    if (first < 0) first += (dilation - 1 - first) / dilation * dilation;
    spans.push_back({first, std::max<int64_t>((end - first + dilation - 1) / dilation, 0)});
  }
  are_pairs = kernel == 2 && stride == 2 && padding == 0 && dilation == 1 && 2 * size <= image_size;
}

MaxPool::MaxPool(const at::Tensor& images, at::IntArrayRef kernel, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode)
    : rows_(images.size(2), max_pool::item(kernel, 0),
            max_pool::item(stride.empty() ? kernel : stride, 0), max_pool::item(padding, 0),
            max_pool::item(dilation, 0), ceil_mode),
      columns_(images.size(3), max_pool::item(kernel, 1),
               max_pool::item(stride.empty() ? kernel : stride, 1), max_pool::item(padding, 1),
               max_pool::item(dilation, 1), ceil_mode) {
  const at::IntArrayRef steps = stride.empty() ? kernel : stride;
  at::native::pool2d_shape_check(images, rows_.kernel, columns_.kernel, max_pool::item(steps, 0),
                                 max_pool::item(steps, 1), max_pool::item(padding, 0),
                                 max_pool::item(padding, 1), rows_.dilation, columns_.dilation,
                                 images.size(1), rows_.image_size, columns_.image_size, height(),
                                 width(), at::MemoryFormat::ChannelsLast);
}

void MaxPool::take_row(const float* image, int64_t channels, int64_t row, float* maxima,
                       int64_t* indices) const {
  const Span rows = rows_.spans[row];
  const max_pool::Windows windows{.first = rows.first * columns_.image_size,
                                  .rows = rows.count,
                                  .row_step = rows_.dilation * columns_.image_size,
                                  .columns = columns_.spans.data(),
                                  .count = width(),
                                  .column_step = columns_.dilation};
#if POPTORCH_EMU_COMPILES_VECTORS
  const int64_t num_places = rows_.image_size * columns_.image_size;
  if (vectors::width() > 0 && num_places <= std::numeric_limits<int32_t>::max()) {
    namespace kernels = max_pool::kernels;
    if (vectors::width() == 512) {
      const auto take = indices == nullptr ? kernels::take_maxima_by_masks<false>
                                           : kernels::take_maxima_by_masks<true>;
      return take(windows, channels, image, maxima, indices);
    }
    if (channels >= kernels::kNarrowLanes) {
      const auto take = indices == nullptr ? kernels::take_maxima_by_registers<false>
                                           : kernels::take_maxima_by_registers<true>;
      return take(windows, channels, image, maxima, indices);
    }
  }
#endif
  max_pool::kernels::take_maxima(windows, channels, image, maxima, indices);
}

MaxPool::Span MaxPool::rows_read(int64_t begin, int64_t most, int64_t& end) const {
  int64_t first = rows_.image_size, last = -1;
  for (end = begin; end < height(); ++end) {
    // With a padding and a dilation, a window may begin before the one above it.
    const Span& rows = rows_.spans[end];
    if (rows.count == 0) continue;
    const int64_t next_first = std::min(first, rows.first);
    const int64_t next_last = std::max(last, rows.first + (rows.count - 1) * rows_.dilation);
    if (last >= first && next_last - next_first >= most) break;
    first = next_first, last = next_last;
  }
  return last < first ? Span{0, 0} : Span{first, last - first + 1};
}

void MaxPool::take_row_of_plane(const float* plane, int64_t pitch, int64_t first, int64_t row,
                                bool has_relu, float* largest, float* maxima) const {
  namespace kernels = max_pool::kernels;
  const Span rows = rows_.spans[row];
  kernels::take_columns(plane + (rows.first - first) * pitch, rows.count, rows_.dilation * pitch,
                        columns_.image_size, has_relu, largest);
  if (columns_.are_pairs) return kernels::take_pairs(largest, width(), maxima);
  for (int64_t window = 0; window < width(); ++window) {
    const Span& columns = columns_.spans[window];
    float maximum = has_relu ? 0.0f : -std::numeric_limits<float>::infinity();
    for (int64_t column = 0; column < columns.count; ++column)
      maximum = kernels::larger(largest[columns.first + column * columns_.dilation], maximum);
    maxima[window] = maximum;
  }
}

}  // namespace poptorch_emu

#pragma GCC pop_options
