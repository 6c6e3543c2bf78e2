#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace poptorch_emu {

// Products of matrices so small that they lie in a core's cache, where packing them and asking a
// library cost more than they give.

// Whether such a product, of (n, depth) and (depth, k), is made by `multiply_small` rather than by
// a library; panels (`panel_product.h`) come before either. Its matrices are float32, in any order;
// n is more than 1, and k is whole lines of a cache.
bool is_small_product(int64_t n, int64_t depth, int64_t k);

// What k becomes where the right side is padded for that.
int64_t whole_lines(int64_t k);

// Returns the sums of the columns of such a product's left side, (depth, n), which are (n): the
// gradient of a bias. They have the bits of PyTorch's sums on one thread.
at::Tensor sum_small_columns(const at::Tensor& columns);

// Has the contiguous `product` (n, k) be left @ right, or adds that to it; the right side may have
// more columns, up to whole lines. Each element is added up in the order of the depth before it is
// added, whatever the number of threads is.
void multiply_small(const at::Tensor& left, const at::Tensor& right, bool adds,
                    at::Tensor& product);

}  // namespace poptorch_emu
