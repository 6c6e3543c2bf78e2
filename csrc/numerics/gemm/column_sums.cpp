// Rows may be far apart in memory. Therefore a few columns are read at a time, as many as a core's
// cache can hold with all rows.

#include "numerics/gemm/column_sums.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "common/sharing.h"
#include "numerics/permuted_copy.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace {

constexpr int64_t kLine = 16;  // numbers in a cache line
constexpr int64_t kColumnsAtOnce = 128;

void fetch(const float* rows, int64_t stride, int64_t num_rows, int64_t num_columns) {
  for (int64_t row = 0; row < num_rows; ++row, rows += stride) {
    for (int64_t column = 0; column < num_columns; column += kLine)
      __builtin_prefetch(rows + column);
  }
}

// Adds up a block, and prefetches a group of rows while it adds the group before.
void add_block(const float* rows, int64_t stride, int64_t depth, int64_t num_columns, float* sums) {
  for (int64_t row = 0; row < depth; row += kSumGroup, rows += kSumGroup * stride) {
    if (row + 2 * kSumGroup <= depth)
      fetch(rows + kSumGroup * stride, stride, kSumGroup, num_columns);
    add_wide_group(rows, stride, std::min(kSumGroup, depth - row), num_columns, sums);
  }
}

void sum_part(const float* rows, int64_t stride, int64_t depth, int64_t num_columns, float* sums) {
  std::fill_n(sums, num_columns, 0.0f);
  add_block(rows, stride, std::min(kSumBlock, depth), num_columns, sums);
  for (int64_t first = kSumBlock; first < depth; first += kSumBlock) {
    std::array<float, kColumnsAtOnce> block = {};
    add_block(rows + first * stride, stride, std::min(kSumBlock, depth - first), num_columns,
              block.data());
    for (int64_t column = 0; column < num_columns; ++column) sums[column] += block[column];
  }
}

}  // namespace

at::Tensor sum_columns(const at::Tensor& rows) {
  // Below this number of elements a second thread costs more time than it saves.
  constexpr int64_t kFewestNumbers = int64_t{1} << 18;
  const int64_t depth = rows.size(0), n = rows.size(1);
  const at::Tensor dense = with_dense_rows(rows);
  at::Tensor sums = at::empty({n}, rows.options());
  const float* const from = dense.const_data_ptr<float>();
  float* const to = sums.mutable_data_ptr<float>();
  const int64_t num_parts = (n + kColumnsAtOnce - 1) / kColumnsAtOnce;
  const int64_t grain = kFewestNumbers / (kColumnsAtOnce * std::max<int64_t>(depth, 1)) + 1;
  share_out(num_parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin * kColumnsAtOnce; column < std::min(end * kColumnsAtOnce, n);
         column += kColumnsAtOnce) {
      sum_part(from + column, dense.stride(0), depth, std::min(kColumnsAtOnce, n - column),
               to + column);
    }
  });
  return sums;
}

}  // namespace poptorch_emu

#pragma GCC pop_options
