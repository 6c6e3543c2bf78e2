#pragma once

#include <ATen/core/Tensor.h>

#include "common/product_kernel.h"

namespace poptorch_emu {

// A product left @ right of (n, depth) and (depth, k).
struct Product {
  const at::Tensor& left;
  const at::Tensor& right;
  ProductKernel kernel;
  // What the rows of `left` add up to, (n), is written here if it is asked for: the gradient of a
  // linear layer's bias. It has the bits of `sum_columns`.
  at::Tensor* row_sums = nullptr;

  at::Tensor empty_sum() const;
};

// Makes the contiguous `sum` (n, k) the product, or adds that to it. Kernels of ours are for
// float32; their bits depend neither on the number of threads nor on where the numbers lie. Throws
// `ValueError` for matrices that the kernel cannot multiply.
void multiply(const Product& product, bool adds, at::Tensor& sum);

// Makes each row of a contiguous matrix of float32 a copy of `row`, which may lie in any order.
void fill_rows(const at::Tensor& row, at::Tensor& matrix);

}  // namespace poptorch_emu
