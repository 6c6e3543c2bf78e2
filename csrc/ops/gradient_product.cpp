// The gradients of a linear layer's weight, where it is not added to its sum while it is made, and
// of its bias, where that is not made by the way.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "numerics/gemm/column_product.h"

namespace poptorch_emu {
namespace {

at::Tensor gradient_product(const at::Tensor& left, const at::Tensor& right) {
  const Product product{left, right};
  at::Tensor gradient = product.empty_sum();
  multiply_by_faster_kernel(product, /*adds=*/false, gradient);
  return gradient;
}

}  // namespace
}  // namespace poptorch_emu

// `poptorch_emu/engine/rewrites/gradient_sums.py` defines it.
TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("gradient_product", &poptorch_emu::gradient_product);
  m.impl("column_sums", &poptorch_emu::sums_beside_product);
}
