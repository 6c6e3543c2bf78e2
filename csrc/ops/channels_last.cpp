// The layout in which the engine's convolutions, poolings and batch norms compute, as an operator.

#include "numerics/channels_last.h"

#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) { m.def("channels_last(Tensor(a) x) -> Tensor(a)"); }

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("channels_last", poptorch_emu::channels_last); }
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("channels_last", poptorch_emu::channels_last); }
