#include "numerics/gemm/panel_product.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/gemm/packing.h"
#include "numerics/gemm/register_tile.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu::panels {
namespace {

using packing::num_tiles;
using packing::packed_of_thread;
using packing::Side;

// So many columns of the right are packed at once where they are read for many rows: 1 MB.
constexpr int64_t kBlockColumns = 42 * kColumns;

constexpr int64_t kLanes = vectors::Registers<vectors::Avx2>::kLanes;
constexpr int64_t kVectors = kColumns / kLanes;
template <int64_t kCount>
using Tile = RegisterTile<vectors::Avx2, kTileRows, kCount * kLanes>;

// A tile of the left as it was copied from rows, and from columns.
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

// Rows of the left that were copied.
struct Block {
  const float* values;
  int64_t num_rows;
  int64_t depth;
  bool is_transposed;
};

// The part of a result that begins with a row and a column.
Result part_of(const Result& result, int64_t row, int64_t column) {
  Result part = result;
  part.values += row * result.stride + column;
  if (part.start != nullptr) part.start += row * result.start_stride + column;
  return part;
}

Left part_of(const Left& left, int64_t row, int64_t k) {
  const int64_t row_stride = left.is_transposed ? 1 : left.stride;
  const int64_t depth_stride = left.is_transposed ? left.stride : 1;
  return {left.values + row * row_stride + k * depth_stride, left.stride, left.is_transposed};
}

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
      float& value = to.values[row * to.stride + column];
      value = to.start == nullptr ? tile[column]
                                  : to.start[row * to.start_stride + column] + tile[column];
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
    to = part_of(to, kTileRows, 0);
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

// Multiplies a block with all panels, which lie so far apart.
void multiply_panels(const Block& left, const float* panels, int64_t distance, int64_t n,
                     const Result& to) {
  for (int64_t index = 0; index < num_panels(n); ++index) {
    multiply_panel(left, panels + index * distance, part_of(to, 0, first_column(index, n)),
                   width_of(index, n));
  }
}

// Packs the panels of a row-major matrix one after the other, and multiplies a block with them.
void multiply_matrix(const Block& left, const float* matrix, int64_t stride, int64_t n,
                     const Result& to) {
  const int64_t size = left.depth * kColumns;
  float* const packed = packed_of_thread<Side::kRight>(kPanelsAtOnce * size);
  for (int64_t index = 0; index < num_panels(n); ++index) {
    const int64_t of_pair = index % kPanelsAtOnce;
    if (of_pair == 0) pack_right(matrix, stride, left.depth, n, index, packed);
    multiply_panel(left, packed + of_pair * size, part_of(to, 0, first_column(index, n)),
                   width_of(index, n));
  }
}

// Multiplies up to `kMostRows` rows with all of the right. Blocks of the depth are added in turn.
void multiply_rows(const Left& left, int64_t num_rows, const Right& right, int64_t n, int64_t depth,
                   Result result, float* left_sums) {
  float* const rows = packed_of_thread<Side::kLeft>(kMostRows * kRowStride);
  for (int64_t first = 0; first < depth; first += kBlockDepth) {
    const int64_t length = std::min(kBlockDepth, depth - first);
    std::array<float, kMostRows> sums = {};
    copy_left(part_of(left, 0, first), num_rows, length, rows,
              left_sums == nullptr ? nullptr : sums.data());
    for (int64_t row = 0; left_sums != nullptr && row < num_rows; ++row)
      left_sums[row] += sums[row];
    const Block block{rows, num_rows, length, left.is_transposed};
    if (right.is_packed) {
      multiply_panels(block, right.values + first * kColumns, depth * kColumns, n, result);
    } else {
      multiply_matrix(block, right.values + first * right.stride, right.stride, n, result);
    }
    result.start = result.values;
    result.start_stride = result.stride;
  }
}

// How many tiles a thread takes at least. Workers that help each other are busy most of the time,
// and more parts would copy and pack more.
int64_t fewest_tiles() {
  constexpr int64_t kFewestOfThread = 8;
  return at::get_num_threads() == 1 ? kMostTiles : kFewestOfThread;
}

void multiply_parts(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
                    const Result& result, float* left_sums) {
  share_out(num_tiles(m, kTileRows), fewest_tiles(), [&](int64_t begin, int64_t end) {
    // As many tiles at once in each block.
    const int64_t num_blocks = num_tiles(end - begin, kMostTiles);
    const int64_t at_once = num_tiles(end - begin, num_blocks) * kTileRows;
    for (int64_t row = begin * kTileRows; row < std::min(end * kTileRows, m); row += at_once) {
      const int64_t num_rows = std::min({at_once, end * kTileRows - row, m - row});
      multiply_rows(part_of(left, row, 0), num_rows, right, n, depth, part_of(result, row, 0),
                    left_sums == nullptr ? nullptr : left_sums + row);
    }
  });
}

// Packs blocks of the right once for all rows of the left. Who makes a part of the rows packs
// nothing, so that what this thread has packed stays.
void multiply_many_rows(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
                        const Result& result, float* left_sums) {
  for (int64_t column = 0; column < n; column += kBlockColumns) {
    const int64_t num_columns = std::min(kBlockColumns, n - column);
    Result to = part_of(result, 0, column);
    for (int64_t first = 0; first < depth; first += kBlockDepth) {
      const int64_t length = std::min(kBlockDepth, depth - first);
      const int64_t count = num_panels(num_columns), size = length * kColumns;
      float* const packed = packed_of_thread<Side::kRight>(count * size);
      const float* const block = right.values + first * right.stride + column;
      for (int64_t panel = 0; panel < count; panel += kPanelsAtOnce)
        pack_right(block, right.stride, length, num_columns, panel, packed + panel * size);
      multiply_parts(part_of(left, 0, first), m, {packed, 0, true}, num_columns, length, to,
                     column == 0 ? left_sums : nullptr);
      to.start = to.values;
      to.start_stride = to.stride;
    }
  }
}

std::atomic<bool>& used() {
  static std::atomic<bool> used = POPTORCH_EMU_IS_AMD && vectors::width() == 256;
  return used;
}

}  // namespace

void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums) {
  if (m == 0 || n == 0) return;
  if (left_sums != nullptr) std::fill_n(left_sums, m, 0.0f);
  if (right.is_packed || m <= kMostRows) {
    multiply_parts(left, m, right, n, depth, result, left_sums);
  } else {
    multiply_many_rows(left, m, right, n, depth, result, left_sums);
  }
}

// Speed over MKL's on one core of an AMD EPYC with AVX2, rows x depth x columns: of weights that
// were packed ahead 16 x 512 x 512 1.42, 32 x 512 x 512 1.31, 64 x 256 x 256 1.31, 256 x 128 x 128
// 1.11, 256 x 512 x 512 1.07, 256 x 512 x 2048 1.12, 256 x 2048 x 512 1.05, 2048 x 512 x 512 1.05;
// of others 24 x 100 x 512 0.96, 64 x 512 x 512 1.02, 256 x 512 x 512 1.02, 256 x 512 x 2048 1.09,
// 256 x 5000 x 512 0.99, 2048 x 512 x 512 1.05; with a transposed left 128 x 256 x 128 1.00, 512 x
// 256 x 512 1.04, 1536 x 256 x 512 1.08, 512 x 32 x 512 0.98, 96 x 256 x 96 0.92. Where somebody
// else's work shared the physical core it was 1.05 to 1.25 more often than not.
bool is_faster(int64_t m, int64_t depth, int64_t n) {
  constexpr int64_t kFewestRows = 16, kFewestColumns = 64, kLeastDepth = 16;
  constexpr int64_t kFewestMultiplications = int64_t{1} << 20;
  return is_used() && m >= kFewestRows && n >= kFewestColumns && depth >= kLeastDepth &&
         m * depth * n > kFewestMultiplications;
}

bool is_used() { return used(); }

bool use(bool is_asked) { return used().exchange(is_asked && vectors::width() > 0); }

}  // namespace poptorch_emu::panels

#pragma GCC pop_options
