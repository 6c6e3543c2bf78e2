#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Copies x, whose elements lie in another order than that of its dimensions, to `target` in that
// order. False, and nothing is copied, where PyTorch's way is faster.
bool copy_by_tiles(const at::Tensor& x, void* target);

// Returns a copy of x whose elements lie in the order of its dimensions, by tiles where that is
// faster than PyTorch's. x may have any strides.
at::Tensor permuted_copy(const at::Tensor& x);

// Returns x if its rows, the last dimension, are dense and its memory has its numbers, not those
// negated; otherwise a copy in the order of its dimensions.
at::Tensor with_dense_rows(const at::Tensor& x);

}  // namespace poptorch_emu
