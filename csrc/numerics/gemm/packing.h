#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/vectors.h"
#include "numerics/gemm/column_sums.h"

namespace poptorch_emu::packing {

// Copies of blocks of matrices in which those numbers lie together that a product reads together.

constexpr int64_t kLine = 16;  // Numbers in a line of a cache.

// A row-major matrix, or some columns of it.
struct Matrix {
  const float* values;
  int64_t stride;
};

inline int64_t num_tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }
inline int64_t padded(int64_t size, int64_t tile) { return num_tiles(size, tile) * tile; }

// Packs columns as (panels, depth, kWidth); what is missing in the last panel is 0. Adds what the
// columns have to `sums`, if there are any.
template <int64_t kWidth>
POPTORCH_EMU_INLINE void pack(const Matrix& matrix, int64_t depth, int64_t width, float* panels,
                              float* sums) {
  // Rows that lie far apart are read a few at a time, and the next few are fetched meanwhile.
  constexpr int64_t kRowsAtOnce = kSumGroup;
  for (int64_t first = 0; first < depth; first += kRowsAtOnce) {
    const int64_t last = std::min(first + kRowsAtOnce, depth);
    const int64_t ahead = last + kRowsAtOnce <= depth ? kRowsAtOnce * matrix.stride : 0;
    for (int64_t from = 0; from < width; from += kWidth) {
      const float* source = matrix.values + first * matrix.stride + from;
      float* target = panels + from * depth + first * kWidth;
      const int64_t count = std::min(kWidth, width - from);
      for (int64_t row = first; row < last; ++row) {
        for (int64_t line = 0; line < kWidth; line += kLine)
          __builtin_prefetch(source + ahead + line);
        if (count == kWidth) {
          std::memcpy(target, source, kWidth * sizeof(float));
        } else {
          std::fill(std::copy_n(source, count, target), target + kWidth, 0.0f);
        }
        source += matrix.stride;
        target += kWidth;
      }
    }
    if (sums != nullptr)
      add_wide_group(matrix.values + first * matrix.stride, matrix.stride, last - first, width,
                     sums);
  }
}

// Memory of the current thread for so many numbers, which may be anything, for either side of a
// product. It begins with a line, so that no vector lies in two.
enum class Side { kLeft, kRight };
template <Side kSide>
float* packed_of_thread(int64_t count) {
  thread_local std::vector<float> packed;
  if (static_cast<int64_t>(packed.size()) < count + kLine) packed.resize(count + kLine);
  void* first = packed.data();
  size_t size = packed.size() * sizeof(float);
  return static_cast<float*>(std::align(kLine * sizeof(float), count * sizeof(float), first, size));
}

}  // namespace poptorch_emu::packing
