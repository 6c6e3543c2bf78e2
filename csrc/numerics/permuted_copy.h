#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Copies a tensor with permuted strides to contiguous memory at `target`. Returns false without a
// copy if PyTorch's copy is faster.
bool copy_by_tiles(const at::Tensor& x, void* target);

// Returns a contiguous copy of x, which may have any strides; it copies in tiles where this is
// faster than PyTorch's copy.
at::Tensor permuted_copy(const at::Tensor& x);

// Returns x if its last dimension is dense and x has no lazy negation; else a contiguous copy.
at::Tensor with_dense_rows(const at::Tensor& x);

}  // namespace poptorch_emu
