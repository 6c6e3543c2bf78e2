// Operators for matrix products with the kernel that an argument names and an optional row to add,
// and for column sums.

#include "numerics/gemm/product.h"

#include <torch/library.h>

#include "numerics/gemm/column_sums.h"

namespace poptorch_emu {
namespace {

at::Tensor product(const at::Tensor& left, const at::Tensor& right, int64_t kernel,
                   const std::optional<at::Tensor>& row) {
  const Product product{left, right, product_kernel(kernel)};
  at::Tensor result = product.empty_sum();
  if (row.has_value()) {
    TORCH_CHECK_VALUE(row->scalar_type() == at::kFloat && row->sizes() == result.sizes().slice(1),
                      "A product of ", result.size(1), " columns got a row of shape ", row->sizes(),
                      " and type ", row->scalar_type(), " to add; expected float32 [",
                      result.size(1), "].");
    fill_rows(*row, result);
  }
  multiply(product, /*adds=*/row.has_value(), result);
  return result;
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("product(Tensor left, Tensor right, int kernel, Tensor? row=None) -> Tensor");
  m.def("column_sums(Tensor columns) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("product", &poptorch_emu::product);
  m.impl("column_sums", &poptorch_emu::sum_columns);
}
