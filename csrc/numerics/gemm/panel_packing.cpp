#include "numerics/gemm/panel_packing.h"

#include <algorithm>
#include <cstring>

#include "common/vectors.h"
#include "numerics/gemm/packing.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu::panels {
namespace {

using packing::kLine;

POPTORCH_EMU_AVX2 void copy_columns(const Left& left, int64_t num_rows, int64_t depth, float* to,
                                    float* sums) {
  packing::pack<kTileRows>({left.values, left.stride}, depth, num_rows, to, sums);
}

void copy_rows(const Left& left, int64_t num_rows, int64_t depth, float* to) {
  for (int64_t row = 0; row < packing::padded(num_rows, kTileRows); ++row, to += kRowStride) {
    if (row < num_rows) {
      std::copy_n(left.values + row * left.stride, depth, to);
    } else {
      std::fill_n(to, depth, 0.0f);
    }
  }
}

// Packs panels that have all their columns.
POPTORCH_EMU_AVX2 void pack_whole(const float* row, int64_t stride, int64_t depth, bool fetches,
                                  float* to) {
  constexpr int64_t kAtOnce = kPanelsAtOnce * kColumns;
  const int64_t ahead = fetches ? kAtOnce : 0;
  for (int64_t k = 0; k < depth; ++k, row += stride, to += kColumns) {
#pragma GCC unroll 8
    for (int64_t line = 0; line < kAtOnce; line += kLine)
      __builtin_prefetch(row + ahead + line, /*rw=*/0, /*locality=*/2);
#pragma GCC unroll 8
    for (int64_t panel = 0; panel < kPanelsAtOnce; ++panel)
      std::memcpy(to + panel * depth * kColumns, row + panel * kColumns, kColumns * sizeof(float));
  }
}

}  // namespace

int64_t num_panels(int64_t n) { return packing::num_tiles(n, kColumns); }

int64_t first_column(int64_t panel, int64_t n) {
  constexpr int64_t kFew = 8;  // Numbers in a register.
  const int64_t last = num_panels(n) - 1;
  const bool takes_some = panel == last && panel > 0 && n - panel * kColumns <= kFew;
  return panel > last ? n : panel * kColumns - (takes_some ? kFew : 0);
}

int64_t width_of(int64_t panel, int64_t n) {
  return first_column(panel + 1, n) - first_column(panel, n);
}

void copy_left(const Left& left, int64_t num_rows, int64_t depth, float* to, float* sums) {
  if (left.is_transposed) {
    copy_columns(left, num_rows, depth, to, sums);
  } else {
    copy_rows(left, num_rows, depth, to);
  }
}

void pack_right(const float* values, int64_t stride, int64_t depth, int64_t n, int64_t begin,
                float* to) {
  const int64_t end = std::min(begin + kPanelsAtOnce, num_panels(n));
  const int64_t first = first_column(begin, n), last = first_column(end, n);
  if (last - first == kPanelsAtOnce * kColumns) {
    pack_whole(values + first, stride, depth, last < n, to);
    return;
  }
  for (int64_t panel = begin; panel < end; ++panel) {
    const float* row = values + first_column(panel, n);
    for (int64_t k = 0; k < depth; ++k, row += stride, to += kColumns)
      std::copy_n(row, width_of(panel, n), to);
  }
}

}  // namespace poptorch_emu::panels

#pragma GCC pop_options
