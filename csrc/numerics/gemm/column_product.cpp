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
#include "numerics/gemm/panel_product.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace columns {
namespace {

constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 64;

int64_t padded(int64_t size, int64_t tile) { return packing::num_tiles(size, tile) * tile; }

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
  panels::multiply({a.const_data_ptr<float>(), a.stride(0), /*is_transposed=*/true}, n,
                   {b.const_data_ptr<float>(), b.stride(0), /*is_packed=*/false}, k, depth,
                   {to, k, adds ? to : nullptr, k}, of_rows);
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
