#include "numerics/gemm/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "numerics/gemm/column_sums.h"
#include "numerics/gemm/panel_product.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

namespace poptorch_emu {
namespace {

void check(const Product& product) {
  const auto& [left, right, kernel, row_sums] = product;
  const bool is_single = left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat;
  const bool has_sizes = left.dim() == 2 && right.dim() == 2 && left.size(1) == right.size(0);
  const bool is_for_us = is_single && has_sizes && right.size(0) > 0;
  TORCH_CHECK_VALUE(is_for_us || (has_sizes && kernel == ProductKernel::kLibrary), "The kernel '",
                    name_of(kernel), "' multiplies float32 matrices (n, depth) and (depth, k) ",
                    "of a depth above 0, but got ", left.scalar_type(), left.sizes(), " and ",
                    right.scalar_type(), right.sizes(), ".");
}

// Multiplies by panels. If the left matrix is transposed, its copies also yield its row sums.
void multiply_by_panels(const Product& product, bool adds, at::Tensor& sum) {
  const auto& [given, right, kernel, row_sums] = product;
  const bool is_transposed = given.stride(0) == 1 && !given.is_neg();
  const at::Tensor a = is_transposed ? given : with_dense_rows(given), b = with_dense_rows(right);
  float* of_rows = nullptr;
  if (row_sums != nullptr && is_transposed) {
    *row_sums = at::empty({given.size(0)}, given.options());
    of_rows = row_sums->mutable_data_ptr<float>();
  } else if (row_sums != nullptr) {
    *row_sums = sum_columns(given.t());
  }
  float* const to = sum.mutable_data_ptr<float>();
  const int64_t k = right.size(1);
  panels::multiply({a.const_data_ptr<float>(), a.stride(is_transposed ? 1 : 0), is_transposed},
                   a.size(0), {b.const_data_ptr<float>(), b.stride(0), /*is_packed=*/false}, k,
                   b.size(0), {to, k, adds ? to : nullptr, k}, of_rows);
}

}  // namespace

at::Tensor Product::empty_sum() const {
  return at::empty({left.size(0), right.size(1)}, left.options());
}

void multiply(const Product& product, bool adds, at::Tensor& sum) {
  check(product);
  const auto& [left, right, kernel, row_sums] = product;
  switch (kernel) {
    case ProductKernel::kPanels:
      return multiply_by_panels(product, adds, sum);
    case ProductKernel::kSmall:
      multiply_small(left, right, adds, sum);
      break;
    case ProductKernel::kLibrary:
      if (adds) {
        sum.addmm_(left, right);
      } else {
        at::mm_out(sum, left, right);
      }
  }
  if (row_sums != nullptr) *row_sums = sum_columns(left.t());
}

void fill_rows(const at::Tensor& row, at::Tensor& matrix) {
  const at::Tensor dense = row.resolve_neg().contiguous();
  float* to = matrix.mutable_data_ptr<float>();
  for (int64_t number = 0; number < matrix.size(0); ++number)
    to = std::copy_n(dense.const_data_ptr<float>(), dense.size(0), to);
}

}  // namespace poptorch_emu
