// Both matrices are read in place. Rows of the right matrix consist of whole cache lines.

#include "numerics/gemm/small_product.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "common/sharing.h"
#include "numerics/gemm/register_tile.h"
#include "numerics/permuted_copy.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace small {
namespace {

// Number of columns of the narrowest tile, which is a cache line.
constexpr int64_t kNarrow = 16;

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

// Computes the last columns of a product, which are fewer than a tile has.
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

// Computes all rows of some columns.
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
POPTORCH_EMU_INLINE void multiply_all(int64_t depth, const Left& left, int64_t n, Right right,
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

}  // namespace

void multiply(int64_t depth, const Left& left, int64_t n, const Right& right, int64_t k,
              const Sum& sum) {
  if (vectors::width() == 512) {
    vectors::run_for(vectors::Avx512(), [&]() __attribute__((always_inline)) {
      multiply_all<vectors::Avx512>(depth, left, n, right, k, sum);
    });
  } else {
    vectors::run_for(vectors::Avx2(), [&]() __attribute__((always_inline)) {
      multiply_all<vectors::Avx2>(depth, left, n, right, k, sum);
    });
  }
}

}  // namespace small

int64_t whole_lines(int64_t k) {
  return (k + small::kNarrow - 1) / small::kNarrow * small::kNarrow;
}

void multiply_small(const at::Tensor& left, const at::Tensor& right, bool adds,
                    at::Tensor& product) {
  const int64_t n = left.size(0), depth = right.size(0), k = product.size(1);
  TORCH_INTERNAL_ASSERT(left.size(1) == depth && product.is_contiguous() && product.size(0) == n);
  TORCH_CHECK_VALUE(right.size(1) == whole_lines(k), "The kernel 'small' reads ", whole_lines(k),
                    " columns for ", k, ", but got ", right.size(1), ".");
  const at::Tensor a = left.is_neg() ? left.resolve_neg() : left, b = with_dense_rows(right);
  const float* const from = a.const_data_ptr<float>();
  float* const to = product.mutable_data_ptr<float>();
  // Below this number of multiplications a second thread costs more time than it saves.
  constexpr int64_t kFewestMultiplications = int64_t{1} << 20;
  share_out(n, kFewestMultiplications / (depth * k) + 1, [&](int64_t begin, int64_t end) {
    small::multiply(depth, {from + begin * a.stride(0), a.stride(0), a.stride(1)}, end - begin,
                    {b.const_data_ptr<float>(), b.stride(0)}, k, {to + begin * k, k, adds});
  });
}

}  // namespace poptorch_emu

#pragma GCC pop_options
