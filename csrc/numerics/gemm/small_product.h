#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/vectors.h"

namespace poptorch_emu {

// Products of matrices that fit into a core's cache, for which packing and a library call would
// cost more time than they save.

// Returns k rounded up to whole cache lines: the columns of the right matrix of a product.
int64_t whole_lines(int64_t k);

namespace small {

// The left matrix, from the first row and depth of a tile. `left(row, k)` returns a number.
struct Left {
  const float* values;
  int64_t row_stride, depth_stride;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return values[row * row_stride + k * depth_stride];
  }
};

// The right matrix, from the first column of a tile.
struct Right {
  const float* values;
  int64_t stride;
};
struct Sum {
  float* values;
  int64_t stride;
  bool adds;
};

// Multiplies n rows with k columns on the current thread. The function reads whole cache lines of
// the right matrix, which may extend beyond k columns.
void multiply(int64_t depth, const Left& left, int64_t n, const Right& right, int64_t k,
              const Sum& sum);

}  // namespace small

// Writes left @ right to the contiguous `product` (n, k), or adds it. It requires vectors
// (`vectors::width`). The matrices are float32 and may have any strides. Each element is summed in
// the order of the depth before it is added, whatever the number of threads.
void multiply_small(const at::Tensor& left, const at::Tensor& right, bool adds,
                    at::Tensor& product);

}  // namespace poptorch_emu
