#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/vectors.h"

namespace poptorch_emu {

// Sums of the columns of a float32 matrix, for the gradients of biases. The order of additions
// depends only on the number of rows: groups of rows are added up in blocks, and blocks in turn.

constexpr int64_t kSumGroup = 16;
constexpr int64_t kSumBlock = 256;

// Adds the columns of a group of up to `kSumGroup` rows to the sums of its block.
template <int64_t kWidth>
POPTORCH_EMU_INLINE void add_group(const float* rows, int64_t stride, int64_t num_rows,
                                   float* sums) {
  float group[kWidth] = {};
  for (int64_t row = 0; row < num_rows; ++row, rows += stride) {
    for (int64_t column = 0; column < kWidth; ++column) group[column] += rows[column];
  }
  for (int64_t column = 0; column < kWidth; ++column) sums[column] += group[column];
}

// Same as `add_group` for `num_columns` columns.
POPTORCH_EMU_INLINE void add_wide_group(const float* rows, int64_t stride, int64_t num_rows,
                                        int64_t num_columns, float* sums) {
  constexpr int64_t kLane = 16;  // width of a group of columns
  int64_t column = 0;
  for (; column + kLane <= num_columns; column += kLane)
    add_group<kLane>(rows + column, stride, num_rows, sums + column);
  for (; column < num_columns; ++column)
    add_group<1>(rows + column, stride, num_rows, sums + column);
}

// Returns the column sums (n) of a matrix (depth, n).
at::Tensor sum_columns(const at::Tensor& rows);

}  // namespace poptorch_emu
