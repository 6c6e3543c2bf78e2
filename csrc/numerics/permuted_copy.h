#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Returns a copy of x whose elements lie in the order of its dimensions, by tiles where that is
// faster than PyTorch's. x may have any strides.
at::Tensor permuted_copy(const at::Tensor& x);

}  // namespace poptorch_emu
