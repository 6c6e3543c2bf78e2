#pragma once

#include <cstdint>

#include "numerics/gemm/panel_packing.h"

namespace poptorch_emu::panels {

// Products of large float32 matrices by a kernel of ours for processors with AVX2. The right side
// goes through it by panels, each of which stays in a core's first cache while the rows of the left
// are multiplied with it. Each number is added up in the order of the depth, in blocks of
// `kBlockDepth`, whatever the number of threads is and wherever the numbers lie.

// The right side (depth, n): a row-major matrix, or panels (panels, depth, kColumns) that were
// packed ahead.
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

// Multiplies, on a processor with AVX2. What the rows of a transposed left add up to, (m), is
// written to `left_sums` if it is not null. A thread keeps up to 1.3 MB for it.
void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums);

// Whether a product of (m, depth) and (depth, n) is made so in place of by PyTorch's library: large
// ones on the processors on which they are faster.
bool is_faster(int64_t m, int64_t depth, int64_t n);

// Whether it is this processor that does so.
bool is_used();
// Has any processor with vectors do so, or none; returns what was before. For tests.
bool use(bool is_asked);

}  // namespace poptorch_emu::panels
