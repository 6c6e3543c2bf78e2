#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// Products left @ right of (n, depth) and (depth, k) that become a contiguous sum (n, k), or are
// added to it. They are made for a left that lies transposed in memory, as it does in the gradient
// of a linear layer's weight; others are copied.

// By a kernel of ours, for float32 on processors with AVX-512. The bits depend neither on the
// number of threads nor on where the numbers lie. A thread keeps up to 1.2 MB for it.
void multiply_columns(const at::Tensor& left, const at::Tensor& right, bool adds, at::Tensor& sum);

// By that kernel or by PyTorch's: the sizes, the type and the processor decide.
void multiply_by_faster_kernel(const at::Tensor& left, const at::Tensor& right, bool adds,
                               at::Tensor& sum);

}  // namespace poptorch_emu
