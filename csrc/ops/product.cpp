// Products of two matrices by kernels of ours where these are faster, as an operator.

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "numerics/panel_product.h"
#include "numerics/permuted_copy.h"
#include "numerics/small_product.h"

namespace poptorch_emu {
namespace {

panels::Left left_side(const at::Tensor& dense) {
  const bool is_transposed = dense.stride(1) != 1;
  return {dense.const_data_ptr<float>(), dense.stride(is_transposed ? 1 : 0), is_transposed};
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  const bool is_single = left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat;
  const bool has_sizes = left.dim() == 2 && right.dim() == 2 && left.size(1) == right.size(0);
  if (!is_single || !has_sizes) return at::mm(left, right);
  const int64_t m = left.size(0), n = right.size(1), depth = right.size(0);
  const bool is_small = is_small_product(m, depth, n);
  const bool is_by_panels = right.stride(1) == 1 && panels::is_faster(m, n, depth);
  if (!is_small && !is_by_panels) return at::mm(left, right);
  at::Tensor result = at::empty({m, n}, left.options());
  if (is_small) {
    multiply_small(left, right, /*adds=*/false, result);
    return result;
  }
  const at::Tensor dense = left.stride(0) == 1 && !left.is_neg() ? left : with_dense_rows(left);
  const at::Tensor rows = with_dense_rows(right);
  panels::multiply(left_side(dense), m,
                   {rows.const_data_ptr<float>(), rows.stride(0), /*is_packed=*/false}, n, depth,
                   {result.mutable_data_ptr<float>(), n}, nullptr);
  return result;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("product(Tensor left, Tensor right) -> Tensor");
  m.def("multiplies_by_panels() -> bool", &poptorch_emu::panels::is_used);
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("product", &poptorch_emu::product); }
