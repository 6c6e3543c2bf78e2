#pragma once

#include <cstdint>

#include "numerics/gemm/packing.h"

namespace poptorch_emu::panels {

// Products of large float32 matrices by a kernel of ours, for processors with AVX2 or AVX-512. The
// right matrix is packed in panels and the left one in tiles of rows; a micro-kernel multiplies a
// tile with a panel. Each number is summed in the order of the depth, in blocks of `kSumBlock` that
// are added in turn. No bit depends on vector width, number of threads or memory addresses.

// The left matrix (m, depth): a row-major matrix, or its transpose.
struct Left {
  const float* values;
  int64_t stride;
  bool is_transposed;
};

// The right matrix (depth, n): row-major, or panels (panels, depth, width) that were packed before.
struct Right {
  const float* values;
  int64_t stride;  // stride of a row-major matrix
  bool is_packed;
};

// The row-major product (m, n). It is added to `start`, if given, which may be the product itself.
// With a stride of 0, the same row is added everywhere.
struct Result {
  float* values;
  int64_t stride;
  const float* start = nullptr;
  int64_t start_stride = 0;
};

// Returns the division into panels that this processor uses for n columns.
packing::Panels panels_of(int64_t n);

// Multiplies two matrices; requires vectors (`vectors::width`). If `left_sums` is not null, it
// receives the row sums of a transposed left matrix, (m). A thread keeps buffers of up to 1.3 MB.
void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums);

}  // namespace poptorch_emu::panels
