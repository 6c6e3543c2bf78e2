#pragma once

#include <ATen/core/Tensor.h>

namespace poptorch_emu {

// A product left @ right of (n, depth) and (depth, k), which becomes a contiguous sum (n, k) or is
// added to it. It is made for a left that lies transposed in memory, as it does in the gradient of
// a linear layer's weight; others are copied.
struct Product {
  const at::Tensor& left;
  const at::Tensor& right;
  // What the rows of `left` add up to, (n), is written here if it is asked for: the gradient of the
  // layer's bias.
  at::Tensor* row_sums = nullptr;

  at::Tensor empty_sum() const;
};

// By a kernel of ours, for float32 where there are vectors (`vectors::width`). The bits depend
// neither on the number of threads nor on where the numbers lie. A thread keeps up to 1.3 MB for
// it.
void multiply_columns(const Product& product, bool adds, at::Tensor& sum);

// By that kernel, by the one for small products or by PyTorch's: the sizes, the type and the
// processor decide.
void multiply_by_faster_kernel(const Product& product, bool adds, at::Tensor& sum);

// Returns the sums of columns (depth, n), with the bits of those that come with the product of
// these columns and k others by the faster kernel.
at::Tensor sums_beside_product(const at::Tensor& columns, int64_t k);

}  // namespace poptorch_emu
