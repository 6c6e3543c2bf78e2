#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Copies of single rows of a matrix; idle workers help.

// Returns the rows of a contiguous matrix with these indices (int64 [n]), as [n, width].
at::Tensor gather_rows(const at::Tensor& matrix, const at::Tensor& rows);

// Overwrites these rows, each named once, with `values` (contiguous [n, width]).
void scatter_rows(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& values);

}  // namespace poptorch_emu
