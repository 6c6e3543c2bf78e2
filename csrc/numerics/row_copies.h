#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Copies of single rows of a matrix, which a worker shares with those that have nothing to do.

// Returns these rows (int64 [n]) of a contiguous matrix; [n, width].
at::Tensor gather_rows(const at::Tensor& matrix, const at::Tensor& rows);

// Makes `values` (contiguous [n, width]) these rows, each of which is named once.
void scatter_rows(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& values);

}  // namespace poptorch_emu
