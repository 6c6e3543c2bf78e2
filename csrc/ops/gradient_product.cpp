// The gradient of a linear layer's weight, where it is not added to its sum while it is made.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "numerics/column_product.h"

namespace poptorch_emu {
namespace {

at::Tensor gradient_product(const at::Tensor& left, const at::Tensor& right) {
  at::Tensor product = at::empty({left.size(0), right.size(1)}, left.options());
  multiply_by_faster_kernel(left, right, /*adds=*/false, product);
  return product;
}

}  // namespace
}  // namespace poptorch_emu

// `poptorch_emu/segments/product_gradients.py` defines it.
TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("gradient_product", &poptorch_emu::gradient_product);
}
