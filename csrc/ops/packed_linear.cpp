// Operators for linear layers whose weights are packed once for many products.

#include "numerics/gemm/packed_weight.h"

#include <torch/library.h>

namespace poptorch_emu {
namespace {

at::Tensor pack(const at::Tensor& weight, int64_t kernel, int64_t rows) {
  return pack_weight(weight, product_kernel(kernel), rows);
}

// Writes to `out`, an earlier result with the same arguments; without `out`, returns a new tensor.
at::Tensor pack_out(const at::Tensor& weight, int64_t kernel, int64_t rows,
                    const std::optional<at::Tensor>& out) {
  if (!out.has_value() || !out->defined()) return pack(weight, kernel, rows);
  at::Tensor packed = *out;
  pack_weight_again(weight, product_kernel(kernel), rows, packed);
  return packed;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& packed,
                  const std::optional<at::Tensor>& bias, int64_t num_outputs, int64_t kernel) {
  return packed_linear(x, packed, bias, num_outputs, product_kernel(kernel));
}

}  // namespace
}  // namespace poptorch_emu

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("pack_weight(Tensor weight, int kernel, int rows) -> Tensor");
  m.def("pack_weight.out(Tensor weight, int kernel, int rows, *, Tensor(a!)? out) -> Tensor(a!)");
  m.def(
      "packed_linear(Tensor x, Tensor packed, Tensor? bias, int num_outputs, int kernel) "
      "-> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("pack_weight", &poptorch_emu::pack);
  m.impl("pack_weight.out", &poptorch_emu::pack_out);
  m.impl("packed_linear", &poptorch_emu::linear);
}
