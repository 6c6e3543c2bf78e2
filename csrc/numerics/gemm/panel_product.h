#pragma once

#include <cstdint>

#include "numerics/gemm/packing.h"

namespace poptorch_emu::panels {

// Products of large float32 matrices by a kernel of ours, for processors with AVX2 or AVX-512. The
// right side is packed as panels, the left one as tiles of rows; a micro-kernel multiplies a tile
// with a panel. Each number is added up in the order of the depth, in blocks of `kSumBlock`, which
// are added in turn: no bit depends on the width of vectors, on the number of threads or on where
// the numbers lie.

// The left side (m, depth): the rows of a row-major matrix, or its columns.
struct Left {
  const float* values;
  int64_t stride;
  bool is_transposed;
};

// The right side (depth, n): a row-major matrix, or panels (panels, depth, width) that were packed
// ahead.
struct Right {
  const float* values;
  int64_t stride;  // of a matrix
  bool is_packed;
};

// The row-major product (m, n). It is added to `start`, if there is one, which may be the product
// itself; a stride of 0 adds the same row everywhere.
struct Result {
  float* values;
  int64_t stride;
  const float* start = nullptr;
  int64_t start_stride = 0;
};

// How this processor has n columns of a right side packed.
packing::Panels panels_of(int64_t n);

// Multiplies, on a processor with vectors (`vectors::width`). What the rows of a transposed left
// add up to, (m), is written to `left_sums` if it is not null. A thread keeps up to 1.3 MB for it.
void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums);

}  // namespace poptorch_emu::panels
