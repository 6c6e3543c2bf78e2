#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Fills `place` with the stack of `samples` and returns true, if that has its type and its shape;
// otherwise changes nothing. For the batches of a loader: the samples must be dense, on the host,
// and in no graph of autograd.
bool stack_into(at::TensorList samples, const at::Tensor& place);

}  // namespace poptorch_emu
