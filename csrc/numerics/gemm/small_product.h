#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/vectors.h"

namespace poptorch_emu {

// Products of matrices so small that they lie in a core's cache, where packing them and asking a
// library cost more than they give.

// How many columns the right side of a product of k columns has: whole lines of a cache.
int64_t whole_lines(int64_t k);

namespace small {

// The rows of the left that a product, or a tile of one, begins with. `left(row, k)` is a number.
struct Left {
  const float* values;
  int64_t row_stride, depth_stride;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return values[row * row_stride + k * depth_stride];
  }
};

// The columns of the right, and of the product, that it begins with.
struct Right {
  const float* values;
  int64_t stride;
};
struct Sum {
  float* values;
  int64_t stride;
  bool adds;
};

// Multiplies n rows with k columns on the current thread. Whole lines of the right are read, which
// may reach beyond the k columns.
void multiply(int64_t depth, const Left& left, int64_t n, const Right& right, int64_t k,
              const Sum& sum);

}  // namespace small

// Has the contiguous `product` (n, k) be left @ right, or adds that to it, on a processor with
// vectors (`vectors::width`). The matrices are float32 and may lie in any order. Each element is
// added up in the order of the depth before it is added, whatever the number of threads is.
void multiply_small(const at::Tensor& left, const at::Tensor& right, bool adds,
                    at::Tensor& product);

}  // namespace poptorch_emu
