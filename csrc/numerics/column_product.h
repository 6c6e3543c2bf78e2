#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Products left right of a left (n, depth) that lies transposed in memory, as it does in the
// gradient of a linear layer's weight, with a right (depth, k). They become a contiguous sum
// (n, k), or are added to it.

// By a kernel of ours, for float32 on processors with AVX-512. The bits depend neither on the
// number of threads nor on where the numbers lie.
void multiply_columns(const at::Tensor& left, const at::Tensor& right, bool adds, at::Tensor& sum);

// By that kernel or by PyTorch's, as is faster: the sizes and the processor decide.
void multiply_fast(const at::Tensor& left, const at::Tensor& right, bool adds, at::Tensor& sum);

}  // namespace poptorch_emu
