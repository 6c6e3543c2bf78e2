// Operator that converts to the layout of the engine's convolutions, poolings and batch norms.

#include "numerics/channels_last.h"

#include <torch/library.h>

namespace {

// Writes to `out`, an earlier result; without it, returns a new tensor that is never a view of x.
at::Tensor channels_last_out(const at::Tensor& x, const std::optional<at::Tensor>& out) {
  if (!out.has_value() || !out->defined()) return poptorch_emu::channels_last(x.clone());
  at::Tensor image = *out;
  return image.copy_(x);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("channels_last(Tensor(a) x) -> Tensor(a)");
  m.def("channels_last.out(Tensor x, *, Tensor(a!)? out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("channels_last", poptorch_emu::channels_last);
  m.impl("channels_last.out", channels_last_out);
}
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("channels_last", poptorch_emu::channels_last); }
