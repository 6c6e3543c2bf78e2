#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/vectors.h"
#include "numerics/gemm/column_sums.h"

namespace poptorch_emu::packing {

// Copies of blocks of matrices that place numbers in the order in which a product reads them.

constexpr int64_t kLine = 16;  // numbers in a cache line

// A row-major matrix, or some of its columns.
struct Matrix {
  const float* values;
  int64_t stride;
};

inline int64_t num_tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

// Division of n columns into panels of `width` columns. If at most `few` columns remain for the
// last panel, it also gets `few` columns of the panel before.
struct Panels {
  int64_t n;
  int64_t width;
  int64_t few = 0;

  int64_t count() const { return num_tiles(n, width); }
  // Returns the first column of a panel, or n for the index after the last panel.
  int64_t first(int64_t panel) const {
    const int64_t last = count() - 1;
    const bool is_narrow = panel == last && panel > 0 && n - panel * width <= few;
    return panel > last ? n : panel * width - (is_narrow ? few : 0);
  }
  int64_t width_of(int64_t panel) const { return first(panel + 1) - first(panel); }
};

// Packs panels `begin` to `end` of a matrix of `depth` rows as (panels, depth, kWidth), padded with
// zeros. Adds the columns to `sums`, if given.
template <int64_t kWidth>
POPTORCH_EMU_INLINE void pack(const Matrix& matrix, int64_t depth, const Panels& panels,
                              int64_t begin, int64_t end, float* packed, float* sums) {
  // A few rows are read at a time and the next few prefetched, because rows may be far apart.
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

// The two sides of a product. `packed_of_thread` returns a buffer of the current thread for `count`
// numbers of one side, uninitialised and aligned, so that no vector crosses a cache line.
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
