#include "numerics/gemm/panel_product.h"

#include <algorithm>
#include <array>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/gemm/register_tile.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu::panels {
namespace {

using packing::num_tiles;
using packing::packed_of_thread;
using packing::Panels;
using packing::Side;

// Depth of a block, whose products are summed before they are added to the result.
constexpr int64_t kBlockDepth = kSumBlock;
// Stride of copied rows of the left matrix; the rows of a tile start in different cache sets.
constexpr int64_t kRowStride = kBlockDepth + 16;

// Block sizes of a product for one vector width.
template <class Width>
struct Blocking;

template <>
struct Blocking<vectors::Avx2> {
  // Rows of a tile. The registers hold the sums for a tile and a panel, and one row of the panel.
  static constexpr int64_t kTileRows = 4;
  static constexpr int64_t kPanelColumns = 24;
  // Number of tiles copied at once: 280 KB, half of a second-level cache.
  static constexpr int64_t kMostTiles = 64;
  // Whether the panel stays in the first-level cache while all rows are multiplied; it has 24 KB.
  static constexpr bool kKeepsPanel = true;
  // Number of panels packed at once for few rows: whole cache lines of each row of the matrix.
  static constexpr int64_t kPanelsAtOnce = 2;
  // Number of panels packed at once for many rows: 1 MB.
  static constexpr int64_t kBlockPanels = 42;
};

template <>
struct Blocking<vectors::Avx512> {
  static constexpr int64_t kTileRows = 6;
  static constexpr int64_t kPanelColumns = 64;
  static constexpr int64_t kMostTiles = 24;
  // Whether the panel stays in the first-level cache. Here a small tile stays instead, and the sums
  // of a few rows are written in turn.
  static constexpr bool kKeepsPanel = false;
  static constexpr int64_t kBlockPanels = 16;
};

// A block of copied rows of the left matrix.
struct Block {
  const float* values;
  int64_t num_rows;
  int64_t depth;
  bool is_transposed;
};

// Returns the part of a result that begins at a row and a column.
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

// Writes the part of a tile that lies within the product.
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

template <class Width>
class Product {
  using Sizes = Blocking<Width>;
  static constexpr int64_t kTileRows = Sizes::kTileRows;
  static constexpr int64_t kPanelColumns = Sizes::kPanelColumns;
  static constexpr int64_t kMostRows = Sizes::kMostTiles * kTileRows;
  static constexpr int64_t kLanes = vectors::Registers<Width>::kLanes;
  static constexpr int64_t kVectors = kPanelColumns / kLanes;

  template <int64_t kCount>
  using Tile = RegisterTile<Width, kTileRows, kCount * kLanes>;

  // Access to a tile of the left matrix that was copied from rows, and below from columns.
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

 public:
  static Panels panels_of(int64_t n) { return {n, kPanelColumns, kLanes}; }

  static void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
                       const Result& result, float* left_sums) {
    if (right.is_packed || (Sizes::kKeepsPanel && m <= kMostRows)) {
      multiply_parts(left, m, right, n, depth, result, left_sums);
    } else {
      multiply_many_rows(left, m, right, n, depth, result, left_sums);
    }
  }

 private:
  static int64_t tile_size(const Block& block) {
    return kTileRows * (block.is_transposed ? block.depth : kRowStride);
  }

  POPTORCH_EMU_INLINE static void fetch(const Result& to) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      const float* const values = to.values + row * to.stride;
      for (int64_t column = 0; column < kPanelColumns - 1; column += packing::kLine)
        __builtin_prefetch(values + column, /*rw=*/1);
      __builtin_prefetch(values + kPanelColumns - 1, /*rw=*/1);
    }
  }

  template <int64_t kCount>
  POPTORCH_EMU_INLINE static void write(const Tile<kCount>& tile, const Result& to) {
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

  // Multiplies the rows of a block with the first vectors of a panel, of which the product has
  // `num_columns` columns.
  template <int64_t kCount, class LeftTile>
  POPTORCH_EMU_INLINE static void multiply_tiles(const Block& left, const float* panel, Result to,
                                                 int64_t num_columns) {
    constexpr int64_t kWidth = kCount * kLanes;
    const float* rows = left.values;
    for (int64_t row = 0; row < left.num_rows; row += kTileRows, rows += tile_size(left)) {
      const int64_t num_rows = std::min(kTileRows, left.num_rows - row);
      if (num_rows == kTileRows && num_columns == kWidth) {
        fetch(to);
        Tile<kCount> tile;
        tile.add_many(left.depth, LeftTile{rows}, panel, kPanelColumns);
        write<kCount>(tile, to);
      } else {
        std::array<float, kTileRows * kWidth> all;
        Tile<kCount> tile;
        tile.add_many(left.depth, LeftTile{rows}, panel, kPanelColumns);
        write<kCount>(tile, {all.data(), kWidth});
        write_corner(all.data(), kWidth, to, num_rows, num_columns);
      }
      to = part_of(to, kTileRows, 0);
    }
  }

  template <int64_t kCount = kVectors>
  static void multiply_panel(const Block& left, const float* panel, const Result& to,
                             int64_t num_columns) {
    if constexpr (kCount > 1) {
      if (num_columns <= (kCount - 1) * kLanes)
        return multiply_panel<kCount - 1>(left, panel, to, num_columns);
    }
    vectors::run_for(Width(), [&]() __attribute__((always_inline)) {
      if (left.is_transposed) {
        multiply_tiles<kCount, PackedColumns>(left, panel, to, num_columns);
      } else {
        multiply_tiles<kCount, SpacedRows>(left, panel, to, num_columns);
      }
    });
  }

  // Multiplies a block with panels that are `distance` numbers apart.
  static void multiply_panels(const Block& left, const float* packed, int64_t distance,
                              const Panels& panels, const Result& to) {
    for (int64_t panel = 0; panel < panels.count(); ++panel) {
      multiply_panel(left, packed + panel * distance, part_of(to, 0, panels.first(panel)),
                     panels.width_of(panel));
    }
  }

  static void multiply_block(const Block& left, const float* packed, int64_t distance,
                             const Panels& panels, const Result& to) {
    if (Sizes::kKeepsPanel) return multiply_panels(left, packed, distance, panels, to);
    for (int64_t row = 0; row < left.num_rows; row += kTileRows) {
      const Block tile{left.values + row / kTileRows * tile_size(left),
                       std::min(kTileRows, left.num_rows - row), left.depth, left.is_transposed};
      multiply_panels(tile, packed, distance, panels, part_of(to, row, 0));
    }
  }

  static void pack_right(const packing::Matrix& matrix, int64_t depth, const Panels& panels,
                         int64_t begin, int64_t end, float* packed) {
    vectors::run_for(Width(), [&]() __attribute__((always_inline)) {
      packing::pack<kPanelColumns>(matrix, depth, panels, begin, end, packed, nullptr);
    });
  }

  // Packs the panels of a row-major matrix a few at a time, and multiplies a block with each group.
  static void multiply_matrix(const Block& left, const packing::Matrix& matrix,
                              const Panels& panels, const Result& to) {
    if constexpr (Sizes::kKeepsPanel) {
      const int64_t size = left.depth * kPanelColumns;
      float* const packed = packed_of_thread<Side::kRight>(Sizes::kPanelsAtOnce * size);
      for (int64_t begin = 0; begin < panels.count(); begin += Sizes::kPanelsAtOnce) {
        const int64_t end = std::min(begin + Sizes::kPanelsAtOnce, panels.count());
        pack_right(matrix, left.depth, panels, begin, end, packed);
        for (int64_t panel = begin; panel < end; ++panel) {
          multiply_panel(left, packed + (panel - begin) * size, part_of(to, 0, panels.first(panel)),
                         panels.width_of(panel));
        }
      }
    }
  }

  // Copies rows of the left matrix with a stride of `kRowStride`, or columns as tiles. The last
  // tile is padded with zeros.
  static void copy_left(const Left& left, int64_t num_rows, int64_t depth, float* to, float* sums) {
    if (left.is_transposed) {
      vectors::run_for(Width(), [&]() __attribute__((always_inline)) {
        const Panels tiles{num_rows, kTileRows};
        packing::pack<kTileRows>({left.values, left.stride}, depth, tiles, 0, tiles.count(), to,
                                 sums);
      });
      return;
    }
    for (int64_t row = 0; row < num_tiles(num_rows, kTileRows) * kTileRows; ++row) {
      if (row < num_rows) {
        std::copy_n(left.values + row * left.stride, depth, to + row * kRowStride);
      } else {
        std::fill_n(to + row * kRowStride, depth, 0.0f);
      }
    }
  }

  // Multiplies up to `kMostRows` rows with the whole right matrix, block by block along the depth.
  static void multiply_rows(const Left& left, int64_t num_rows, const Right& right, int64_t n,
                            int64_t depth, Result result, float* left_sums) {
    float* const rows = packed_of_thread<Side::kLeft>(kMostRows * kRowStride);
    const Panels panels = panels_of(n);
    for (int64_t first = 0; first < depth; first += kBlockDepth) {
      const int64_t length = std::min(kBlockDepth, depth - first);
      std::array<float, kMostRows> sums = {};
      copy_left(part_of(left, 0, first), num_rows, length, rows,
                left_sums == nullptr ? nullptr : sums.data());
      for (int64_t row = 0; left_sums != nullptr && row < num_rows; ++row)
        left_sums[row] += sums[row];
      const Block block{rows, num_rows, length, left.is_transposed};
      if (right.is_packed) {
        multiply_block(block, right.values + first * kPanelColumns, depth * kPanelColumns, panels,
                       result);
      } else {
        multiply_matrix(block, {right.values + first * right.stride, right.stride}, panels, result);
      }
      result.start = result.values;
      result.start_stride = result.stride;
    }
  }

  // Minimum number of tiles for a thread. Workers that help each other are usually busy, and more
  // parts would copy and pack more data. A second thread costs more time than it saves below a
  // million multiplications.
  static int64_t fewest_tiles(int64_t n, int64_t depth) {
    constexpr int64_t kFewest = 8, kFewestMultiplications = int64_t{1} << 20;
    return std::max(at::get_num_threads() == 1 ? Sizes::kMostTiles : kFewest,
                    kFewestMultiplications / (kTileRows * depth * n));
  }

  static void multiply_parts(const Left& left, int64_t m, const Right& right, int64_t n,
                             int64_t depth, const Result& result, float* left_sums) {
    share_out(num_tiles(m, kTileRows), fewest_tiles(n, depth), [&](int64_t begin, int64_t end) {
      // Divide tiles evenly among blocks.
      const int64_t num_blocks = num_tiles(end - begin, Sizes::kMostTiles);
      const int64_t at_once = num_tiles(end - begin, num_blocks) * kTileRows;
      for (int64_t row = begin * kTileRows; row < std::min(end * kTileRows, m); row += at_once) {
        const int64_t num_rows = std::min({at_once, end * kTileRows - row, m - row});
        multiply_rows(part_of(left, row, 0), num_rows, right, n, depth, part_of(result, row, 0),
                      left_sums == nullptr ? nullptr : left_sums + row);
      }
    });
  }

  // Packs blocks of the right matrix once for all rows of the left one. A thread that computes part
  // of the rows packs nothing, so that this thread's packed block stays valid.
  static void multiply_many_rows(const Left& left, int64_t m, const Right& right, int64_t n,
                                 int64_t depth, const Result& result, float* left_sums) {
    constexpr int64_t kBlockColumns = Sizes::kBlockPanels * kPanelColumns;
    for (int64_t column = 0; column < n; column += kBlockColumns) {
      const Panels panels = panels_of(std::min(kBlockColumns, n - column));
      Result to = part_of(result, 0, column);
      for (int64_t first = 0; first < depth; first += kBlockDepth) {
        const int64_t length = std::min(kBlockDepth, depth - first);
        float* const packed =
            packed_of_thread<Side::kRight>(panels.count() * length * kPanelColumns);
        pack_right({right.values + first * right.stride + column, right.stride}, length, panels, 0,
                   panels.count(), packed);
        multiply_parts(part_of(left, 0, first), m, {packed, 0, /*is_packed=*/true}, panels.n,
                       length, to, column == 0 ? left_sums : nullptr);
        to.start = to.values;
        to.start_stride = to.stride;
      }
    }
  }
};

}  // namespace

Panels panels_of(int64_t n) {
  return vectors::width() == 512 ? Product<vectors::Avx512>::panels_of(n)
                                 : Product<vectors::Avx2>::panels_of(n);
}

void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums) {
  if (m == 0 || n == 0) return;
  if (left_sums != nullptr) std::fill_n(left_sums, m, 0.0f);
  const auto multiply = vectors::width() == 512 ? &Product<vectors::Avx512>::multiply
                                                : &Product<vectors::Avx2>::multiply;
  multiply(left, m, right, n, depth, result, left_sums);
}

}  // namespace poptorch_emu::panels

#pragma GCC pop_options
