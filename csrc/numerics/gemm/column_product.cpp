// With AVX-512, blocks of both sides are packed, so that what is read together lies together. The
// sum may be far away: what a tile of it holds is fetched while the products that are added to it
// are made. With AVX2, see `numerics/gemm/panel_product.h`.

#include "numerics/gemm/column_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/gemm/column_sums.h"
#include "numerics/gemm/packing.h"
#include "numerics/gemm/panel_product.h"
#include "numerics/gemm/register_tile.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace columns {
namespace {

using packing::kLine;
using packing::Matrix;
using packing::padded;

// A tile of the sum is made from one panel of either side. Each number that is spread over a
// register is multiplied with four vectors at once.
constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 64;
// So many rows of both sides are added up before they are added to the sum, which gives it the
// roundings of a product and an addition.
constexpr int64_t kBlockDepth = kSumBlock;
// So many columns of either side are packed at once: those of the left, which one thread multiplies
// with all of the right, stay in its cache. They are whole panels, and whole lanes of sums.
constexpr int64_t kBlockLeft = 144;
constexpr int64_t kBlockRight = 1024;

struct Sum {
  float* values;
  int64_t stride;
  bool adds;
};

// A column of a packed panel is a row's numbers.
struct PackedLeft {
  const float* panel;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return panel[k * kTileRows + row];
  }
};

POPTORCH_EMU_AVX512 void multiply_tile(int64_t depth, const float* left, const float* right,
                                       const Sum& sum) {
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t column = 0; column < kTileColumns; column += kLine)
      __builtin_prefetch(sum.values + row * sum.stride + column, /*rw=*/1);
  }
  RegisterTile<vectors::Avx512, kTileRows, kTileColumns> tile;
  tile.add(depth, PackedLeft{left}, right, kTileColumns);
#pragma GCC unroll 8
  for (int64_t row = 0; row < kTileRows; ++row) {
    float* const to = sum.values + row * sum.stride;
    if (sum.adds) {
      tile.write_added(row, to, to);
    } else {
      tile.write(row, to);
    }
  }
}

POPTORCH_EMU_AVX512 void pack_left(const Matrix& matrix, int64_t depth, int64_t width,
                                   float* panels, float* sums) {
  packing::pack<kTileRows>(matrix, depth, width, panels, sums);
}
POPTORCH_EMU_AVX512 void pack_right(const Matrix& matrix, int64_t depth, int64_t width,
                                    float* panels) {
  packing::pack<kTileColumns>(matrix, depth, width, panels, nullptr);
}

// The part of a tile that the sum has.
void multiply_corner(int64_t depth, const float* left, const float* right, const Sum& sum,
                     int64_t num_rows, int64_t num_columns) {
  std::array<float, kTileRows * kTileColumns> tile;
  multiply_tile(depth, left, right, {tile.data(), kTileColumns, /*adds=*/false});
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < num_columns; ++column) {
      float& to = sum.values[row * sum.stride + column];
      const float value = tile[row * kTileColumns + column];
      to = sum.adds ? to + value : value;
    }
  }
}

// Multiplies packed blocks of n and k columns. A panel of the left, which is small, stays in the
// first cache, and the sums of a few rows are written in turn.
void multiply_panels(int64_t depth, const float* left, int64_t n, const float* right, int64_t k,
                     const Sum& sum) {
  for (int64_t row = 0; row < n; row += kTileRows) {
    for (int64_t column = 0; column < k; column += kTileColumns) {
      const Sum tile{sum.values + row * sum.stride + column, sum.stride, sum.adds};
      if (row + kTileRows <= n && column + kTileColumns <= k) {
        multiply_tile(depth, left + row * depth, right + column * depth, tile);
      } else {
        multiply_corner(depth, left + row * depth, right + column * depth, tile,
                        std::min(kTileRows, n - row), std::min(kTileColumns, k - column));
      }
    }
  }
}

// Multiplies n columns of the left with k of the right, packed, and adds what the former have to
// `left_sums`, if there are any.
void multiply_block(const Matrix& left, int64_t n, const float* packed_right, int64_t k,
                    int64_t depth, const Sum& sum, float* left_sums) {
  // A second thread costs more than it gives for less.
  constexpr int64_t kFewestMultiplications = int64_t{1} << 20;
  const int64_t grain = kFewestMultiplications / (kBlockLeft * depth * k) + 1;
  share_out((n + kBlockLeft - 1) / kBlockLeft, grain, [&](int64_t begin, int64_t end) {
    float* const packed_left = packing::packed_of_thread<packing::Side::kLeft>(kBlockLeft * depth);
    for (int64_t row = begin * kBlockLeft; row < std::min(end * kBlockLeft, n); row += kBlockLeft) {
      const int64_t num_rows = std::min(kBlockLeft, n - row);
      std::array<float, kBlockLeft> sums = {};
      pack_left({left.values + row, left.stride}, depth, num_rows, packed_left,
                left_sums == nullptr ? nullptr : sums.data());
      if (left_sums != nullptr) {
        for (int64_t column = 0; column < num_rows; ++column)
          left_sums[row + column] += sums[column];
      }
      multiply_panels(depth, packed_left, num_rows, packed_right, k,
                      {sum.values + row * sum.stride, sum.stride, sum.adds});
    }
  });
}

void multiply(const Matrix& left, int64_t n, const Matrix& right, int64_t k, int64_t depth,
              const Sum& sum, float* left_sums) {
  if (left_sums != nullptr) std::fill_n(left_sums, n, 0.0f);
  for (int64_t column = 0; column < k; column += kBlockRight) {
    const int64_t num_columns = std::min(kBlockRight, k - column);
    for (int64_t first = 0; first < depth; first += kBlockDepth) {
      const int64_t length = std::min(kBlockDepth, depth - first);
      float* const packed_right = packing::packed_of_thread<packing::Side::kRight>(
          length * padded(num_columns, kTileColumns));
      pack_right({right.values + first * right.stride + column, right.stride}, length, num_columns,
                 packed_right);
      multiply_block({left.values + first * left.stride, left.stride}, n, packed_right, num_columns,
                     length, {sum.values + column, sum.stride, sum.adds || first > 0},
                     column == 0 ? left_sums : nullptr);
    }
  }
}

Matrix matrix_of(const at::Tensor& rows) { return {rows.const_data_ptr<float>(), rows.stride(0)}; }

// Measured on one core with AVX-512, depth x n x k, speed over MKL's, with tiles of 8 x 32; with 6
// x 64 on another Xeon, sums of 80 MB in turns, 256 x 128 x 128 0.78, 256 x 256 x 256 0.85, 256 x
// 128 x 512 0.93, 256 x 256 x 1024 1.03, 64 x 256 x 256 1.24, 64 x 512 x 512 1.47. On an AMD EPYC
// 256 x 64 x 64 1.03, 64 x 128 x 128 1.06, 64 x 512 x 512 1.13, 1024 x 256 x 256 1.08, 256 x 1000 x
// 512 1.09; but 1024 x 100 x 100, whose tiles are a quarter padding, 0.85. On an Intel Xeon, whose
// caches held all, 256 x 128 x 128 0.81, 256 x 512 x 128 0.91, 256 x 512 x 512 1.01, 256 x 512 x
// 2048 0.93, 256 x 2048 x 512 1.01, 1024 x 1024 x 256 1.03; with sums of 80 MB in turns 64 x 512 x
// 512 1.5, 40 x 128 x 9216 1.2, 256 x 1000 x 512 1.0, but 8 x 1024 x 1024 0.75.
bool is_faster(int64_t n, int64_t depth, int64_t k) {
  static const int64_t fewest_multiplications = int64_t{1} << (POPTORCH_EMU_IS_AMD ? 20 : 25);
  constexpr int64_t kLeastDepth = 16;
  constexpr int64_t kMostPadding = 16;  // One part of so many.
  const int64_t padding = padded(n, kTileRows) * padded(k, kTileColumns) - n * k;
  return vectors::width() == 512 && depth >= kLeastDepth &&
         depth * n * k >= fewest_multiplications && padding <= n * k / kMostPadding;
}

// What makes a product of float32.
enum class Kernel { kSmall, kColumns, kLibrary };

Kernel fastest_kernel(int64_t n, int64_t depth, int64_t k) {
  if (panels::is_faster(n, depth, k)) return Kernel::kColumns;
  if (is_small_product(n, depth, k)) return Kernel::kSmall;
  return is_faster(n, depth, k) ? Kernel::kColumns : Kernel::kLibrary;
}

}  // namespace
}  // namespace columns

at::Tensor Product::empty_sum() const {
  return at::empty({left.size(0), right.size(1)}, left.options());
}

void multiply_columns(const Product& product, bool adds, at::Tensor& sum) {
  const auto& [left, right, row_sums] = product;
  const int64_t n = left.size(0), k = right.size(1), depth = right.size(0);
  TORCH_INTERNAL_ASSERT(depth > 0 && left.size(1) == depth && sum.is_contiguous() &&
                        sum.size(0) == n && sum.size(1) == k);
  const at::Tensor a = with_dense_rows(left.t()), b = with_dense_rows(right);
  if (row_sums != nullptr) *row_sums = at::empty({n}, left.options());
  float* const of_rows = row_sums == nullptr ? nullptr : row_sums->mutable_data_ptr<float>();
  float* const to = sum.mutable_data_ptr<float>();
  if (vectors::width() == 512 && !panels::is_used()) {
    columns::multiply(columns::matrix_of(a), n, columns::matrix_of(b), k, depth, {to, k, adds},
                      of_rows);
  } else {
    panels::multiply({a.const_data_ptr<float>(), a.stride(0), /*is_transposed=*/true}, n,
                     {b.const_data_ptr<float>(), b.stride(0), /*is_packed=*/false}, k, depth,
                     {to, k, adds ? to : nullptr, k}, of_rows);
  }
}

void multiply_by_faster_kernel(const Product& product, bool adds, at::Tensor& sum) {
  using columns::Kernel;
  const auto& [left, right, row_sums] = product;
  const bool is_single = left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat;
  const Kernel kernel = is_single
                            ? columns::fastest_kernel(left.size(0), right.size(0), right.size(1))
                            : Kernel::kLibrary;
  switch (kernel) {
    case Kernel::kSmall:
      multiply_small(left, right, adds, sum);
      if (row_sums != nullptr) *row_sums = sum_small_columns(left.t());
      return;
    case Kernel::kColumns:
      multiply_columns(product, adds, sum);
      return;
    case Kernel::kLibrary:
      if (adds) {
        sum.addmm_(left, right);
      } else {
        at::mm_out(sum, left, right);
      }
      if (row_sums != nullptr) *row_sums = left.sum(1);
  }
}

at::Tensor sums_beside_product(const at::Tensor& columns, int64_t k) {
  using columns::Kernel;
  if (columns.scalar_type() != at::kFloat) return columns.sum(0);
  switch (columns::fastest_kernel(columns.size(1), columns.size(0), k)) {
    case Kernel::kSmall:
      return sum_small_columns(columns);
    case Kernel::kColumns:
      return sum_columns(columns);
    case Kernel::kLibrary:
      break;
  }
  return columns.sum(0);
}

}  // namespace poptorch_emu

#pragma GCC pop_options
