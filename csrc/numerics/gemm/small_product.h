#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace poptorch_emu {

// Products of matrices so small that they lie in a core's cache, where packing them and asking a
// library cost more than they give.

// How many columns the right side of a product of k columns has: whole lines of a cache.
int64_t whole_lines(int64_t k);

// Has the contiguous `product` (n, k) be left @ right, or adds that to it, on a processor with
// vectors (`vectors::width`). The matrices are float32 and may lie in any order. Each element is
// added up in the order of the depth before it is added, whatever the number of threads is.
void multiply_small(const at::Tensor& left, const at::Tensor& right, bool adds,
                    at::Tensor& product);

}  // namespace poptorch_emu
