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

// How n columns are divided into panels, which have `width` each but for the last ones: where no
// more than `few` would be left for the last one, the one before gives it as many of its own.
struct Panels {
  int64_t n;
  int64_t width;
  int64_t few = 0;

  int64_t count() const { return num_tiles(n, width); }
  // The first column of a panel, or n behind the last one.
  int64_t first(int64_t panel) const {
    const int64_t last = count() - 1;
    const bool is_narrow = panel == last && panel > 0 && n - panel * width <= few;
    return panel > last ? n : panel * width - (is_narrow ? few : 0);
  }
  int64_t width_of(int64_t panel) const { return first(panel + 1) - first(panel); }
};

// Packs the panels from `begin` to `end` of a matrix of `depth` rows as (panels, depth, kWidth);
// what is missing in the last ones is 0. Adds what the columns have to `sums`, if there are any.
template <int64_t kWidth>
POPTORCH_EMU_INLINE void pack(const Matrix& matrix, int64_t depth, const Panels& panels,
                              int64_t begin, int64_t end, float* packed, float* sums) {
  // Rows that lie far apart are read a few at a time, and the next few are fetched meanwhile.
  constexpr int64_t kRowsAtOnce = kSumGroup;
  for (int64_t first = 0; first < depth; first += kRowsAtOnce) {
    const int64_t last = std::min(first + kRowsAtOnce, depth);
    const int64_t ahead = last + kRowsAtOnce <= depth ? kRowsAtOnce * matrix.stride : 0;
    const float* const rows = matrix.values + first * matrix.stride;
    for (int64_t panel = begin; panel < end; ++panel) {
      const float* source = rows + panels.first(panel);
      float* target = packed + ((panel - begin) * depth + first) * kWidth;
      const int64_t width = panels.width_of(panel);
      for (int64_t row = first; row < last; ++row) {
        for (int64_t line = 0; line < kWidth; line += kLine)
          __builtin_prefetch(source + ahead + line);
        if (width == kWidth) {
          std::memcpy(target, source, kWidth * sizeof(float));
        } else {
          std::fill(std::copy_n(source, width, target), target + kWidth, 0.0f);
        }
        source += matrix.stride;
        target += kWidth;
      }
    }
    if (sums != nullptr) add_wide_group(rows, matrix.stride, last - first, panels.n, sums);
  }
}

// Memory of the current thread for `count` numbers, which may be anything, for either side of a
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
