#pragma once

#include <cstdint>

namespace poptorch_emu::panels {

// Products of large float32 matrices by a kernel of ours for processors with AVX2. The right side
// goes through it by panels of 24 columns, each of which stays in a core's first cache while all
// rows of the left are multiplied with it. Each number is added up in the order of the depth, by
// blocks of `kSumBlock`, whatever the number of threads is and wherever the numbers lie.

constexpr int64_t kColumns = 24;  // in a panel

inline int64_t num_panels(int64_t n) { return (n + kColumns - 1) / kColumns; }

// Returns the first of n columns that is in a panel, or n behind the last one. Where few would be
// left for the last panel, the one before it gives it some.
int64_t first_column(int64_t panel, int64_t n);

// The left side (m, depth): the rows of a row-major matrix, or its columns.
struct Left {
  const float* values;
  int64_t stride;
  bool is_transposed;
};

// The right side (depth, n): a row-major matrix, or panels (panels, depth, kColumns) that were
// packed ahead, which are filled up with anything.
struct Right {
  const float* values;
  int64_t stride;  // of the rows of a matrix
  bool is_packed;
};

// The row-major product (m, n), which begins with `start` if there is one: rows that lie so far
// apart, itself among them, or the same one everywhere.
struct Result {
  float* values;
  int64_t stride;
  const float* start = nullptr;
  int64_t start_stride = 0;
};

// A processor without AVX2 must not get here. What the columns of a transposed left add up to, (m),
// is written to `left_sums` if it is not null.
void multiply(const Left& left, int64_t m, const Right& right, int64_t n, int64_t depth,
              const Result& result, float* left_sums);

// Whether products are made so where they are large enough, which is so on the processors on which
// they are faster than by PyTorch's library.
bool is_used();
// Has them made so, or not, on any processor with vectors; returns how it was before. For tests.
bool set_used(bool is_used);

// Whether a product of such a size is made so here.
bool is_faster(int64_t m, int64_t n, int64_t depth);

}  // namespace poptorch_emu::panels
