#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "numerics/elementwise_pass.h"
#include "numerics/row_summands.h"

namespace poptorch_emu {

// Runs elementwise operations on those rows of matrices that have summands, and overwrites them.
// The sums are made while a block of rows is in the cache. Rows without summands stay as they are.
//
// The tensors of the code are the matrices, float32 [rows, width] and contiguous, then the sums.
// Each result takes the place of a matrix, which is returned for it.
std::vector<at::Tensor> update_rows(const RowSummands& summands, at::TensorList matrices,
                                    const ElementwiseCode& code);

}  // namespace poptorch_emu
