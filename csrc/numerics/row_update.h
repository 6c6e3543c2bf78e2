#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "numerics/elementwise_pass.h"
#include "numerics/row_summands.h"

namespace poptorch_emu {

// Runs elementwise operations on the rows of matrices that have summands, and overwrites them. The
// sums are computed while a block of rows is in the cache. Other rows stay unchanged.
//
// The tensors of the code are the matrices, contiguous float32 [rows, width], followed by the sums.
// Each result overwrites a matrix, which is returned for it.
std::vector<at::Tensor> update_rows(const RowSummands& summands, at::TensorList matrices,
                                    const ElementwiseCode& code);

}  // namespace poptorch_emu
