#pragma once

#include <cstdint>

#include "numerics/gemm/column_sums.h"

namespace poptorch_emu::panels {

// How `panel_product.h` has its operands copied. The columns of the right side are divided into
// panels, (depth, kColumns) each, and the rows of the left side into tiles.

constexpr int64_t kColumns = 24;
// The registers hold the sums of so many rows and a panel's columns, beside a row of the panel.
constexpr int64_t kTileRows = 4;
// So deep a panel has 24 KB, less than a first cache. The products of such a block are added up
// before they are added to the sum.
constexpr int64_t kBlockDepth = kSumBlock;
// So many rows of the left are copied at once: 280 KB, half of a second cache.
constexpr int64_t kMostTiles = 64;
constexpr int64_t kMostRows = kMostTiles * kTileRows;
// Copied rows lie so far apart: those of a tile begin in different sets of a cache.
constexpr int64_t kRowStride = kBlockDepth + 16;
// So many panels are packed at once: of each row of a matrix whole lines of a cache.
constexpr int64_t kPanelsAtOnce = 2;

int64_t num_panels(int64_t n);
// The first of n columns that is in a panel, or n behind the last one. Where few would be left for
// the last panel, the one before it gives it some.
int64_t first_column(int64_t panel, int64_t n);
// How many of n columns are in a panel; the rest of it may be anything.
int64_t width_of(int64_t panel, int64_t n);

// The left side (m, depth): the rows of a row-major matrix, or its columns.
struct Left {
  const float* values;
  int64_t stride;
  bool is_transposed;
};

// Copies some of its rows: rows that lie `kRowStride` apart, or tiles (tiles, depth, kTileRows) of
// the columns of a matrix. What is missing in the last tile is 0. Adds what the rows have to
// `sums`, for columns of a matrix, if there are any.
void copy_left(const Left& left, int64_t num_rows, int64_t depth, float* to, float* sums);

// Packs the panels from `begin` on, up to `kPanelsAtOnce`, of a row-major matrix (depth, n), and
// fetches those behind them.
void pack_right(const float* values, int64_t stride, int64_t depth, int64_t n, int64_t begin,
                float* to);

}  // namespace poptorch_emu::panels
