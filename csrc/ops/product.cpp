// Products of two matrices by a kernel of ours where they are small, as an operator.

#include "numerics/small_product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

namespace poptorch_emu {
namespace {

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  const bool is_single = left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat;
  const bool is_ours = is_single && left.dim() == 2 && right.dim() == 2 &&
                       left.size(1) == right.size(0) &&
                       is_small_product(left.size(0), right.size(0), right.size(1));
  if (!is_ours) return at::mm(left, right);
  at::Tensor result = at::empty({left.size(0), right.size(1)}, left.options());
  multiply_small(left, right, /*adds=*/false, result);
  return result;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) { m.def("product(Tensor left, Tensor right) -> Tensor"); }

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("product", &poptorch_emu::product); }
