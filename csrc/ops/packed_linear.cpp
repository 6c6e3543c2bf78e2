// Linear layers whose weights are packed once for many products, as operators.

#include "numerics/gemm/packed_weight.h"

#include <torch/library.h>

namespace {

// Writes in `out`, which was packed before for as many rows; returns a new tensor without it.
at::Tensor pack_weight_out(const at::Tensor& weight, int64_t rows,
                           const std::optional<at::Tensor>& out) {
  if (!out.has_value() || !out->defined()) return poptorch_emu::pack_weight(weight, rows);
  at::Tensor packed = *out;
  poptorch_emu::pack_weight_again(weight, rows, packed);
  return packed;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("pack_weight(Tensor weight, int rows) -> Tensor");
  m.def("pack_weight.out(Tensor weight, int rows, *, Tensor(a!)? out) -> Tensor(a!)");
  m.def("packed_linear(Tensor x, Tensor packed, Tensor? bias, int num_outputs) -> Tensor");
  m.def("is_small_layer(int rows, int num_inputs, int num_outputs) -> bool",
        &poptorch_emu::is_small_layer);
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("pack_weight", &poptorch_emu::pack_weight);
  m.impl("pack_weight.out", &pack_weight_out);
  m.impl("packed_linear", &poptorch_emu::packed_linear);
}
