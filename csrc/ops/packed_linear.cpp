// Linear layers whose weights are packed once for many products, as operators.

#include "numerics/gemm/packed_weight.h"

#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("pack_weight(Tensor weight, int rows) -> Tensor");
  m.def("packed_linear(Tensor x, Tensor packed, Tensor? bias, int num_outputs) -> Tensor");
  m.def("is_small_layer(int rows, int num_inputs, int num_outputs) -> bool",
        &poptorch_emu::is_small_layer);
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("pack_weight", &poptorch_emu::pack_weight);
  m.impl("packed_linear", &poptorch_emu::packed_linear);
}
