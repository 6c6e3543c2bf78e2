#include "numerics/panel_product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/column_sums.h"
#include "numerics/packing.h"
#include "numerics/register_tile.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu::panels {
namespace {

using packing::kLine;
using packing::num_tiles;

// The registers hold the sums of so many rows and a panel's columns, beside a row of the panel.
constexpr int64_t kTileRows = 4;
// So deep a panel has 24 KB, less than a first cache.
constexpr int64_t kBlockDepth = kSumBlock;
// So many rows of the left have 280 KB, half of a second cache.
constexpr int64_t kMostTiles = 64;
constexpr int64_t kMostRows = kMostTiles * kTileRows;
// So many columns of the right are packed at once where there are more rows: 1 MB.
constexpr int64_t kBlockColumns = 42 * kColumns;
// Rows of the left lie so far apart where they are copied: those of a tile begin in different sets
// of a cache, whatever the matrix is.
constexpr int64_t kRowStride = kBlockDepth + kLine;
// A panel that is read from a row-major matrix is packed together with the next one: of each row
// three lines of a cache.
constexpr int64_t kPanelsAtOnce = 2;

constexpr int64_t kLanes = vectors::Registers<vectors::Avx2>::kLanes;
constexpr int64_t kVectors = kColumns / kLanes;
template <int64_t kCount>
using Tile = RegisterTile<vectors::Avx2, kTileRows, kCount * kLanes>;

std::atomic<bool>& used() {
  static std::atomic<bool> used = POPTORCH_EMU_IS_AMD && vectors::width() == 256;
  return used;
}

// The tile of the left as it is copied from rows, and from columns.
struct SpacedRows {
  const float* values;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return values[row * kRowStride + k];
  }
};
struct PackedColumns {
  const float* values;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return values[k * kTileRows + row];
  }
};

// Rows of the left in the order in which they are multiplied.
struct Block {
  const float* values;
  int64_t num_rows;
  int64_t depth;
  bool is_transposed;
};

POPTORCH_EMU_INLINE void fetch(const Result& to) {
#pragma GCC unroll 8
  for (int64_t row = 0; row < kTileRows; ++row) {
    __builtin_prefetch(to.values + row * to.stride, /*rw=*/1);
    __builtin_prefetch(to.values + row * to.stride + kColumns - 1, /*rw=*/1);
  }
}

template <int64_t kCount>
POPTORCH_EMU_INLINE void write(const Tile<kCount>& tile, const Result& to) {
#pragma GCC unroll 8
  for (int64_t row = 0; row < kTileRows; ++row) {
    float* const values = to.values + row * to.stride;
    if (to.start == nullptr) {
      tile.write(row, values);
    } else {
      tile.write_added(row, to.start + row * to.start_stride, values);
    }
  }
}

// Writes the part of a tile that the product has.
void write_corner(const float* tile, int64_t tile_stride, const Result& to, int64_t num_rows,
                  int64_t num_columns) {
  for (int64_t row = 0; row < num_rows; ++row, tile += tile_stride) {
    for (int64_t column = 0; column < num_columns; ++column) {
      const float start = to.start == nullptr ? 0.0f : to.start[row * to.start_stride + column];
      to.values[row * to.stride + column] = start + tile[column];
    }
  }
}

// Multiplies all rows of a block with the first vectors of a panel, in which the product has so
// many columns.
template <int64_t kCount, class LeftTile>
POPTORCH_EMU_INLINE void multiply_block(const Block& left, const float* panel, Result to,
                                        int64_t num_columns) {
  constexpr int64_t kWidth = kCount * kLanes;
  const int64_t depth = left.depth;
  const int64_t tile_size = kTileRows * (left.is_transposed ? depth : kRowStride);
  const float* rows = left.values;
  for (int64_t row = 0; row < left.num_rows; row += kTileRows, rows += tile_size) {
    const int64_t num_rows = std::min(kTileRows, left.num_rows - row);
    if (num_rows == kTileRows && num_columns == kWidth) {
      fetch(to);
      Tile<kCount> tile;
      tile.add_many(depth, LeftTile{rows}, panel, kColumns);
      write<kCount>(tile, to);
    } else {
      std::array<float, kTileRows * kWidth> all;
      Tile<kCount> tile;
      tile.add_many(depth, LeftTile{rows}, panel, kColumns);
      write<kCount>(tile, {all.data(), kWidth});
      write_corner(all.data(), kWidth, to, num_rows, num_columns);
    }
    to.values += kTileRows * to.stride;
    if (to.start != nullptr) to.start += kTileRows * to.start_stride;
  }
}

template <int64_t kCount>
POPTORCH_EMU_AVX2 void multiply_vectors(const Block& left, const float* panel, const Result& to,
                                        int64_t num_columns) {
  if (left.is_transposed) {
    multiply_block<kCount, PackedColumns>(left, panel, to, num_columns);
  } else {
    multiply_block<kCount, SpacedRows>(left, panel, to, num_columns);
  }
}

void multiply_panel(const Block& left, const float* panel, const Result& to, int64_t num_columns) {
  static_assert(kVectors == 3);
  if (num_columns > 2 * kLanes) {
    multiply_vectors<3>(left, panel, to, num_columns);
  } else if (num_columns > kLanes) {
    multiply_vectors<2>(left, panel, to, num_columns);
  } else {
    multiply_vectors<1>(left, panel, to, num_columns);
  }
}

POPTORCH_EMU_AVX2 void pack_columns(const Left& left, int64_t num_rows, int64_t depth, float* to,
                                    float* sums) {
  packing::pack<kTileRows>({left.values, left.stride}, depth, num_rows, to, sums);
}

// What is missing in the last tile is 0.
void copy_rows(const Left& left, int64_t num_rows, int64_t depth, float* to) {
  for (int64_t row = 0; row < packing::padded(num_rows, kTileRows); ++row, to += kRowStride) {
    if (row < num_rows) {
      std::copy_n(left.values + row * left.stride, depth, to);
    } else {
      std::fill_n(to, depth, 0.0f);
    }
  }
}

int64_t width_of(int64_t panel, int64_t n) {
  return first_column(panel + 1, n) - first_column(panel, n);
}

// Packs whole panels of a row-major matrix, and fetches as many behind them if there are some.
POPTORCH_EMU_INLINE void pack_whole(const float* row, int64_t stride, int64_t depth, bool fetches,
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

// Packs the panels from `begin` on, up to `kPanelsAtOnce`.
POPTORCH_EMU_AVX2 void pack_panels(const Right& right, int64_t depth, int64_t n, int64_t begin,
                                   float* to) {
  const int64_t end = std::min(begin + kPanelsAtOnce, num_panels(n));
  const int64_t first = first_column(begin, n), last = first_column(end, n);
  if (last - first == kPanelsAtOnce * kColumns) {
    pack_whole(right.values + first, right.stride, depth, last < n, to);
    return;
  }
  for (int64_t panel = begin; panel < end; ++panel) {
    const float* row = right.values + first_column(panel, n);
    for (int64_t k = 0; k < depth; ++k, row += right.stride, to += kColumns)
      std::copy_n(row, width_of(panel, n), to);
  }
}

// Multiplies a block with some rows of the right; panels of it begin with `panels`, and follow each
// other so far apart, where they are packed already.
void multiply_columns(const Block& left, const Right& right, int64_t n, const float* panels,
                      int64_t panel_size, const Result& to) {
  float* const packed =
      packing::packed_of_thread<packing::Side::kRight>(kPanelsAtOnce * kBlockDepth * kColumns);
  const int64_t count = num_panels(n);
  for (int64_t index = 0; index < count; ++index) {
    const float* panel = panels + index * panel_size;
    if (!right.is_packed) {
      const int64_t of_pair = index % kPanelsAtOnce;
      if (of_pair == 0) pack_panels(right, left.depth, n, index, packed);
      panel = packed + of_pair * left.depth * kColumns;
    }
    const int64_t column = first_column(index, n);
    const float* const start = to.start == nullptr ? nullptr : to.start + column;
    multiply_panel(left, panel, {to.values + column, to.stride, start, to.start_stride},
                   width_of(index, n));
  }
}

// Multiplies some rows of the left with all of the right. Blocks of the depth are added in turn.
void multiply_rows(const Left& left, int64_t num_rows, const Right& right, int64_t n, int64_t depth,
                   Result result, float* left_sums) {
  float* const rows = packing::packed_of_thread<packing::Side::kLeft>(kMostRows * kRowStride);
  for (int64_t first = 0; first < depth; first += kBlockDepth) {
    const int64_t length = std::min(kBlockDepth, depth - first);
    if (left.is_transposed) {
      std::array<float, kMostRows> sums = {};
      pack_columns({left.values + first * left.stride, left.stride, true}, num_rows, length, rows,
                   left_sums == nullptr ? nullptr : sums.data());
      for (int64_t row = 0; left_sums != nullptr && row < num_rows; ++row)
        left_sums[row] += sums[row];
    } else {
      copy_rows({left.values + first, left.stride, false}, num_rows, length, rows);
    }
    const Block block{rows, num_rows, length, left.is_transposed};
    if (right.is_packed) {
      multiply_columns(block, right, n, right.values + first * kColumns, depth * kColumns, result);
    } else {
      multiply_columns(block, {right.values + first * right.stride, right.stride, false}, n,
                       nullptr, 0, result);
    }
    result.start = result.values;
    result.start_stride = result.stride;
  }
}

// So many tiles at least are for one thread: each packs the right for itself.
int64_t fewest_tiles() {
  constexpr int64_t kFewestOfThread = 8;
  return at::get_num_threads() == 1 ? kMostTiles : kFewestOfThread;
}

void multiply_parts(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
                    const Result& result, float* left_sums) {
  share_out(num_tiles(m, kTileRows), fewest_tiles(), [&](int64_t begin, int64_t end) {
    // As many tiles at once in each part.
    const int64_t num_parts = num_tiles(end - begin, kMostTiles);
    const int64_t at_once = num_tiles(end - begin, num_parts) * kTileRows;
    for (int64_t row = begin * kTileRows; row < std::min(end * kTileRows, m); row += at_once) {
      const int64_t num_rows = std::min({at_once, end * kTileRows - row, m - row});
      Left rows = left;
      rows.values += left.is_transposed ? row : row * left.stride;
      Result to = result;
      to.values += row * result.stride;
      if (to.start != nullptr) to.start += row * result.start_stride;
      multiply_rows(rows, num_rows, right, n, depth, to,
                    left_sums == nullptr ? nullptr : left_sums + row);
    }
  });
}

// Packs blocks of the right for all rows of the left.
void multiply_many_rows(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
                        const Result& result, float* left_sums) {
  for (int64_t column = 0; column < n; column += kBlockColumns) {
    const int64_t num_columns = std::min(kBlockColumns, n - column);
    Result to = result;
    to.values += column;
    if (to.start != nullptr) to.start += column;
    for (int64_t first = 0; first < depth; first += kBlockDepth) {
      const int64_t length = std::min(kBlockDepth, depth - first);
      const int64_t count = num_panels(num_columns), size = length * kColumns;
      float* const packed = packing::packed_of_thread<packing::Side::kRight>(count * size);
      const Right block{right.values + first * right.stride + column, right.stride, false};
      for (int64_t panel = 0; panel < count; panel += kPanelsAtOnce)
        pack_panels(block, length, num_columns, panel, packed + panel * size);
      Left rows = left;
      rows.values += left.is_transposed ? first * left.stride : first;
      multiply_parts(rows, m, {packed, 0, true}, num_columns, length, to,
                     column == 0 ? left_sums : nullptr);
      to.start = to.values;
      to.start_stride = to.stride;
    }
  }
}

}  // namespace

int64_t first_column(int64_t panel, int64_t n) {
  constexpr int64_t kFew = kLanes;
  const int64_t last = num_panels(n) - 1;
  const bool is_narrow = panel == last && panel > 0 && n - panel * kColumns <= kFew;
  return panel > last ? n : panel * kColumns - (is_narrow ? kFew : 0);
}

void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums) {
  if (left_sums != nullptr) std::fill_n(left_sums, m, 0.0f);
  if (right.is_packed || m <= kMostRows) {
    multiply_parts(left, m, right, n, depth, result, left_sums);
  } else {
    multiply_many_rows(left, m, right, n, depth, result, left_sums);
  }
}

bool is_used() { return used(); }

bool set_used(bool is_used) { return used().exchange(is_used && vectors::width() > 0); }

// Speed over MKL's on one core of an AMD EPYC with AVX2, rows x depth x columns: of packed weights,
// 16 x 512 x 512 1.42, 32 x 512 x 512 1.31, 64 x 256 x 256 1.31, 256 x 128 x 128 1.11, 256 x 512 x
// 512 1.07, 256 x 512 x 2048 1.12, 256 x 2048 x 512 1.05, 2048 x 512 x 512 1.05; of others 24 x 100
// x 512 0.96, 64 x 512 x 512 1.02, 256 x 512 x 512 1.02, 256 x 512 x 2048 1.09, 256 x 5000 x 512
// 0.99, 2048 x 512 x 512 1.05; of transposed ones 128 x 256 x 128 1.00, 512 x 256 x 512 1.04, 1536
// x 256 x 512 1.08, 512 x 32 x 512 0.98, 96 x 256 x 96 0.92. Where somebody else's work shared the
// physical core it was 1.05 to 1.25 more often than not.
bool is_faster(int64_t m, int64_t n, int64_t depth) {
  constexpr int64_t kFewestRows = 16, kFewestColumns = 64, kLeastDepth = 16;
  constexpr int64_t kMostMultiplicationsOfOthers = int64_t{1} << 20;
  return is_used() && m >= kFewestRows && n >= kFewestColumns && depth >= kLeastDepth &&
         m * n * depth > kMostMultiplicationsOfOthers;
}

}  // namespace poptorch_emu::panels

#pragma GCC pop_options
