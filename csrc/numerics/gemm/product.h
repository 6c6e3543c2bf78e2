#pragma once

#include <ATen/core/Tensor.h>

#include "common/product_kernel.h"

namespace poptorch_emu {

// A product left @ right of (n, depth) and (depth, k).
struct Product {
  const at::Tensor& left;
  const at::Tensor& right;
  ProductKernel kernel;
  // Optional output for the sums of the rows of `left`, (n): the gradient of a linear layer's bias.
  // The sums have the bits of `sum_columns`.
  at::Tensor* row_sums = nullptr;

  at::Tensor empty_sum() const;
};

// Writes the product to the contiguous `sum` (n, k), or adds it. Our kernels support float32 only.
// Their bits depend neither on the number of threads nor on memory addresses. Throws `ValueError`
// for matrices that the kernel does not support.
void multiply(const Product& product, bool adds, at::Tensor& sum);

// Copies `row`, which may have any stride, to each row of a contiguous float32 matrix.
void fill_rows(const at::Tensor& row, at::Tensor& matrix);

}  // namespace poptorch_emu
