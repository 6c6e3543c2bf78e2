// Both sides are read where they are. Rows of the right are whole lines of a core's cache.

#include "numerics/gemm/small_product.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/gemm/register_tile.h"
#include "numerics/permuted_copy.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace small {
namespace {

// So deep a product is added up as a whole, like one of PyTorch's.
constexpr int64_t kMostDepth = 256;
// The narrowest tile, a line of a cache.
constexpr int64_t kNarrow = 16;

// The rows of the left that a tile begins with; `left(row, k)` is a number.
struct Left {
  const float* values;
  int64_t row_stride, depth_stride;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return values[row * row_stride + k * depth_stride];
  }
};

// The columns of the right, and of the product, that a tile begins with.
struct Right {
  const float* values;
  int64_t stride;
};
struct Sum {
  float* values;
  int64_t stride;
  bool adds;
};

template <class Width, int64_t kRows, int64_t kColumns>
POPTORCH_EMU_INLINE void multiply_tile(int64_t depth, const Left& left, const Right& right,
                                       const Sum& sum) {
  RegisterTile<Width, kRows, kColumns> tile;
  tile.add(depth, left, right.values, right.stride);
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) {
    float* const to = sum.values + row * sum.stride;
    if (sum.adds) {
      tile.write_added(row, to, to);
    } else {
      tile.write(row, to);
    }
  }
}

// The last columns of a product, fewer than the right side has.
template <class Width, int64_t kRows>
POPTORCH_EMU_INLINE void multiply_corner(int64_t depth, const Left& left, const Right& right,
                                         int64_t k, const Sum& sum) {
  std::array<float, kRows * kNarrow> tile;
  multiply_tile<Width, kRows, kNarrow>(depth, left, right, {tile.data(), kNarrow, /*adds=*/false});
  for (int64_t row = 0; row < kRows; ++row) {
    float* const to = sum.values + row * sum.stride;
    const float* const from = tile.data() + row * kNarrow;
    for (int64_t column = 0; column < k; ++column)
      to[column] = sum.adds ? to[column] + from[column] : from[column];
  }
}

// All rows of some columns.
template <class Width, int64_t kColumns>
POPTORCH_EMU_INLINE void multiply_columns(int64_t depth, Left left, int64_t n, const Right& right,
                                          int64_t k, Sum sum) {
  constexpr int64_t kRows = vectors::Registers<Width>::kLanes == 16 ? 6 : 3;
  const auto multiply_next = [&](auto num_rows) __attribute__((always_inline)) {
    constexpr int64_t kCount = decltype(num_rows)::value;
    if (k < kColumns) {
      multiply_corner<Width, kCount>(depth, left, right, k, sum);
    } else {
      multiply_tile<Width, kCount, kColumns>(depth, left, right, sum);
    }
    left.values += kCount * left.row_stride;
    sum.values += kCount * sum.stride;
    n -= kCount;
  };
  while (n >= kRows) multiply_next(std::integral_constant<int64_t, kRows>());
  while (n >= 2) multiply_next(std::integral_constant<int64_t, 2>());
  if (n > 0) multiply_next(std::integral_constant<int64_t, 1>());
}

template <class Width>
POPTORCH_EMU_INLINE void multiply(int64_t depth, const Left& left, int64_t n, Right right,
                                  int64_t k, Sum sum) {
  constexpr bool kIsWide = vectors::Registers<Width>::kLanes == 16;
  const auto move_on = [&](int64_t columns) {
    right.values += columns;
    sum.values += columns;
    k -= columns;
  };
  if constexpr (kIsWide) {
    for (; k >= 64; move_on(64)) multiply_columns<Width, 64>(depth, left, n, right, 64, sum);
  }
  for (; k >= 32; move_on(32)) multiply_columns<Width, 32>(depth, left, n, right, 32, sum);
  for (; k > 0; move_on(kNarrow))
    multiply_columns<Width, kNarrow>(depth, left, n, right, std::min(k, kNarrow), sum);
}

// PyTorch adds up 32 columns at a time in groups of 16 rows, and these in turn; 4 at a time where
// there are less than 8. Of the columns that are left it adds up every fourth row so, the last few
// rows with the first of these sums.
constexpr int64_t kColumnsAtOnce = 32;
constexpr int64_t kFewColumns = 8;
constexpr int64_t kColumnsOfFew = 4;
constexpr int64_t kGroup = 16;
constexpr int64_t kSumsOfLast = 4;

template <int64_t kWidth>
POPTORCH_EMU_INLINE void add_rows(const float* rows, int64_t stride, int64_t count, float* sums) {
  for (int64_t row = 0; row < count; ++row, rows += stride) {
    for (int64_t column = 0; column < kWidth; ++column) sums[column] += rows[column];
  }
}

// The last group, which may be empty, comes before the sum of the others.
template <int64_t kWidth>
POPTORCH_EMU_INLINE void sum_groups(const float* rows, int64_t stride, int64_t count, float* sums) {
  float before[kWidth] = {};
  for (; count >= kGroup; count -= kGroup, rows += kGroup * stride) {
    float group[kWidth] = {};
    add_rows<kWidth>(rows, stride, kGroup, group);
    for (int64_t column = 0; column < kWidth; ++column) before[column] += group[column];
  }
  float last[kWidth] = {};
  add_rows<kWidth>(rows, stride, count, last);
  for (int64_t column = 0; column < kWidth; ++column) sums[column] = last[column] + before[column];
}

// The sums of the first columns, as many whole parts as there are; returns how many they are.
template <int64_t kWidth>
int64_t sum_parts(const float* rows, int64_t stride, int64_t depth, int64_t n, float* sums) {
  int64_t column = 0;
  for (; column + kWidth <= n; column += kWidth)
    sum_groups<kWidth>(rows + column, stride, depth, sums + column);
  return column;
}

float sum_of_last(const float* rows, int64_t stride, int64_t depth) {
  std::array<float, kSumsOfLast> sums;
  const int64_t count = depth / kSumsOfLast;
  for (int64_t first = 0; first < kSumsOfLast; ++first)
    sum_groups<1>(rows + first * stride, kSumsOfLast * stride, count, &sums[first]);
  for (int64_t row = count * kSumsOfLast; row < depth; ++row) sums[0] += rows[row * stride];
  return ((sums[0] + sums[1]) + sums[2]) + sums[3];
}

using Multiply = void (*)(int64_t depth, const Left&, int64_t n, Right, int64_t k, Sum);

POPTORCH_EMU_AVX512 void multiply_avx512(int64_t depth, const Left& left, int64_t n, Right right,
                                         int64_t k, Sum sum) {
  multiply<vectors::Avx512>(depth, left, n, right, k, sum);
}
POPTORCH_EMU_AVX2 void multiply_avx2(int64_t depth, const Left& left, int64_t n, Right right,
                                     int64_t k, Sum sum) {
  multiply<vectors::Avx2>(depth, left, n, right, k, sum);
}

}  // namespace
}  // namespace small

int64_t whole_lines(int64_t k) {
  return (k + small::kNarrow - 1) / small::kNarrow * small::kNarrow;
}

bool is_small_product(int64_t n, int64_t depth, int64_t k) {
  // Speed over PyTorch's, depth x n x k, one core of an Intel Xeon with AVX-512: added to a sum, 8
  // x 64 x 64 2.6, 32 x 64 x 128 1.3, 64 x 128 x 128 1.2; 128 x 128 x 128 0.96 to 1.02, 256 x 128 x
  // 128 0.93 to 1.04. That large matrices leave the second cache is assumed.
  constexpr int64_t kMostMultiplications = int64_t{1} << 21;
  constexpr int64_t kMostNumbers = int64_t{1} << 16;  // A quarter of a megabyte.
  const bool has_size = n > 1 && depth > 0 && k > 0 && k % small::kNarrow == 0;
  return vectors::width() > 0 && has_size && depth <= small::kMostDepth &&
         std::max({n * depth, depth * k, n * k}) <= kMostNumbers &&
         n * depth * k <= kMostMultiplications;
}

at::Tensor sum_small_columns(const at::Tensor& columns) {
  const int64_t depth = columns.size(0), n = columns.size(1);
  // PyTorch goes along the memory, which may not be that of rows. A single column is a row to it.
  if (n == 1 || columns.stride(1) != 1 || columns.stride(0) < n) return columns.sum(0);
  const at::Tensor dense = with_dense_rows(columns);
  at::Tensor sums = at::empty({n}, dense.options());
  const float* const rows = dense.const_data_ptr<float>();
  const int64_t stride = dense.stride(0);
  float* const to = sums.mutable_data_ptr<float>();
  int64_t column = n < small::kFewColumns
                       ? small::sum_parts<small::kColumnsOfFew>(rows, stride, depth, n, to)
                       : small::sum_parts<small::kColumnsAtOnce>(rows, stride, depth, n, to);
  for (; column < n; ++column) to[column] = small::sum_of_last(rows + column, stride, depth);
  return sums;
}

void multiply_small(const at::Tensor& left, const at::Tensor& right, bool adds,
                    at::Tensor& product) {
  static const small::Multiply multiply =
      vectors::width() == 512 ? small::multiply_avx512 : small::multiply_avx2;
  const int64_t n = left.size(0), depth = right.size(0), k = product.size(1);
  TORCH_INTERNAL_ASSERT(left.size(1) == depth && product.is_contiguous() && product.size(0) == n &&
                        k <= right.size(1) && right.size(1) == whole_lines(k));
  const at::Tensor a = left.is_neg() ? left.resolve_neg() : left, b = with_dense_rows(right);
  const float* const from = a.const_data_ptr<float>();
  float* const to = product.mutable_data_ptr<float>();
  // A second thread costs more than it gives for less.
  constexpr int64_t kFewestMultiplications = int64_t{1} << 20;
  share_out(n, kFewestMultiplications / (depth * k) + 1, [&](int64_t begin, int64_t end) {
    multiply(depth, {from + begin * a.stride(0), a.stride(0), a.stride(1)}, end - begin,
             {b.const_data_ptr<float>(), b.stride(0)}, k, {to + begin * k, k, adds});
  });
}

}  // namespace poptorch_emu

#pragma GCC pop_options
