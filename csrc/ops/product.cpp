// Products of two matrices by kernels of ours where these are faster, as an operator.

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "numerics/gemm/panel_product.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

namespace poptorch_emu {
namespace {

at::Tensor multiply_by_panels(const at::Tensor& left, const at::Tensor& right) {
  const int64_t m = left.size(0), depth = left.size(1), n = right.size(1);
  at::Tensor result = at::empty({m, n}, left.options());
  const at::Tensor a = left.stride(0) == 1 && !left.is_neg() ? left : with_dense_rows(left);
  const at::Tensor b = with_dense_rows(right);
  const bool is_transposed = a.stride(1) != 1;
  panels::multiply({a.const_data_ptr<float>(), a.stride(is_transposed ? 1 : 0), is_transposed}, m,
                   {b.const_data_ptr<float>(), b.stride(0), /*is_packed=*/false}, n, depth,
                   {result.mutable_data_ptr<float>(), n}, /*left_sums=*/nullptr);
  return result;
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  const bool is_single = left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat;
  const bool has_sizes = left.dim() == 2 && right.dim() == 2 && left.size(1) == right.size(0);
  if (!is_single || !has_sizes) return at::mm(left, right);
  const int64_t m = left.size(0), depth = right.size(0), n = right.size(1);
  if (panels::is_faster(m, depth, n) && right.stride(1) == 1)
    return multiply_by_panels(left, right);
  if (!is_small_product(m, depth, n)) return at::mm(left, right);
  at::Tensor result = at::empty({m, n}, left.options());
  multiply_small(left, right, /*adds=*/false, result);
  return result;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("product(Tensor left, Tensor right) -> Tensor");
  m.def("is_by_panels(int rows, int depth, int columns) -> bool", &poptorch_emu::panels::is_faster);
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("product", &poptorch_emu::product); }
