// Blocks of both sides are packed, so that what is read together lies together. The sum may be far
// away: what a tile of it holds is fetched while the products that are added to it are made.

#include "numerics/column_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/column_sums.h"
#include "numerics/permuted_copy.h"
#include "numerics/register_tile.h"
#include "numerics/small_product.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace columns {
namespace {

// A tile of the sum is made from one panel of either side. Each number that is spread over a
// register is multiplied with four vectors at once.
constexpr int64_t kTileRows = 6;
constexpr int64_t kTileColumns = 64;
// So many rows of both sides are added up before they are added to the sum, which gives it the
// roundings of a product and an addition.
constexpr int64_t kBlockDepth = kSumBlock;
// So many columns of either side are packed at once: those of the left, which one thread multiplies
// with all of the right, stay in its cache. They are whole panels, and whole lanes of sums.
constexpr int64_t kBlockLeft = 144;
constexpr int64_t kBlockRight = 1024;

// A row-major matrix, or some columns of it.
struct Matrix {
  const float* values;
  int64_t stride;
};

constexpr int64_t kLine = 16;  // Numbers in a line of a cache.

struct Sum {
  float* values;
  int64_t stride;
  bool adds;
};

int64_t padded(int64_t size, int64_t tile) { return (size + tile - 1) / tile * tile; }

// Packs columns as (panels, depth, kWidth); what is missing in the last panel is 0. Adds what the
// columns have to `sums`, if there are any.
template <int64_t kWidth>
POPTORCH_EMU_INLINE void pack(const Matrix& matrix, int64_t depth, int64_t width, float* panels,
                              float* sums) {
  // Rows that lie far apart are read a few at a time, and the next few are fetched meanwhile.
  constexpr int64_t kRowsAtOnce = kSumGroup;
  for (int64_t first = 0; first < depth; first += kRowsAtOnce) {
    const int64_t last = std::min(first + kRowsAtOnce, depth);
    const int64_t ahead = last + kRowsAtOnce <= depth ? kRowsAtOnce * matrix.stride : 0;
    for (int64_t from = 0; from < width; from += kWidth) {
      const float* source = matrix.values + first * matrix.stride + from;
      float* target = panels + from * depth + first * kWidth;
      const int64_t count = std::min(kWidth, width - from);
      for (int64_t row = first; row < last; ++row) {
        for (int64_t line = 0; line < kWidth; line += kLine)
          __builtin_prefetch(source + ahead + line);
        if (count == kWidth) {
          std::memcpy(target, source, kWidth * sizeof(float));
        } else {
          std::fill(std::copy_n(source, count, target), target + kWidth, 0.0f);
        }
        source += matrix.stride;
        target += kWidth;
      }
    }
    if (sums != nullptr)
      add_wide_group(matrix.values + first * matrix.stride, matrix.stride, last - first, width,
                     sums);
  }
}

// A column of a packed panel is a row's numbers.
struct PackedLeft {
  const float* panel;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return panel[k * kTileRows + row];
  }
};

// Some columns of some rows of a tile, as many as the registers hold.
template <class Width, int64_t kRows, int64_t kColumns>
POPTORCH_EMU_INLINE void multiply_part(int64_t depth, const float* left, const float* right,
                                       const Sum& sum) {
  RegisterTile<Width, kRows, kColumns> tile;
  tile.add(depth, PackedLeft{left}, right, kTileColumns);
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

template <class Width>
POPTORCH_EMU_INLINE void multiply_tile(int64_t depth, const float* left, const float* right,
                                       const Sum& sum) {
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t column = 0; column < kTileColumns; column += kLine)
      __builtin_prefetch(sum.values + row * sum.stride + column, /*rw=*/1);
  }
  constexpr bool kIsWide = vectors::Registers<Width>::kLanes == 16;
  constexpr int64_t kRows = kIsWide ? kTileRows : kTileRows / 2;
  constexpr int64_t kColumns = kIsWide ? kTileColumns : kTileColumns / 2;
  for (int64_t row = 0; row < kTileRows; row += kRows) {
    for (int64_t column = 0; column < kTileColumns; column += kColumns) {
      multiply_part<Width, kRows, kColumns>(
          depth, left + row, right + column,
          {sum.values + row * sum.stride + column, sum.stride, sum.adds});
    }
  }
}

// What is compiled for each kind of processor. Both give the same bits.
struct Kernels {
  void (*pack_left)(const Matrix&, int64_t depth, int64_t width, float* panels, float* sums);
  void (*pack_right)(const Matrix&, int64_t depth, int64_t width, float* panels);
  void (*multiply_tile)(int64_t depth, const float* left, const float* right, const Sum&);
};

namespace avx512 {
POPTORCH_EMU_AVX512 void pack_left(const Matrix& matrix, int64_t depth, int64_t width,
                                   float* panels, float* sums) {
  pack<kTileRows>(matrix, depth, width, panels, sums);
}
POPTORCH_EMU_AVX512 void pack_right(const Matrix& matrix, int64_t depth, int64_t width,
                                    float* panels) {
  pack<kTileColumns>(matrix, depth, width, panels, nullptr);
}
POPTORCH_EMU_AVX512 void multiply_tile(int64_t depth, const float* left, const float* right,
                                       const Sum& sum) {
  columns::multiply_tile<vectors::Avx512>(depth, left, right, sum);
}
}  // namespace avx512

namespace avx2 {
POPTORCH_EMU_AVX2 void pack_left(const Matrix& matrix, int64_t depth, int64_t width, float* panels,
                                 float* sums) {
  pack<kTileRows>(matrix, depth, width, panels, sums);
}
POPTORCH_EMU_AVX2 void pack_right(const Matrix& matrix, int64_t depth, int64_t width,
                                  float* panels) {
  pack<kTileColumns>(matrix, depth, width, panels, nullptr);
}
POPTORCH_EMU_AVX2 void multiply_tile(int64_t depth, const float* left, const float* right,
                                     const Sum& sum) {
  columns::multiply_tile<vectors::Avx2>(depth, left, right, sum);
}
}  // namespace avx2

const Kernels& kernels() {
  static const Kernels kernels =
      vectors::width() == 512
          ? Kernels{avx512::pack_left, avx512::pack_right, avx512::multiply_tile}
          : Kernels{avx2::pack_left, avx2::pack_right, avx2::multiply_tile};
  return kernels;
}

// The part of a tile that the sum has.
void multiply_corner(int64_t depth, const float* left, const float* right, const Sum& sum,
                     int64_t num_rows, int64_t num_columns) {
  std::array<float, kTileRows * kTileColumns> tile;
  kernels().multiply_tile(depth, left, right, {tile.data(), kTileColumns, /*adds=*/false});
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < num_columns; ++column) {
      float& to = sum.values[row * sum.stride + column];
      const float value = tile[row * kTileColumns + column];
      to = sum.adds ? to + value : value;
    }
  }
}

// Multiplies packed blocks of n and k columns. A panel of the left, which is small, stays in the
// first cache, and the sums of a few rows are written in turn.
void multiply_panels(int64_t depth, const float* left, int64_t n, const float* right, int64_t k,
                     const Sum& sum) {
  const auto multiply_tile = kernels().multiply_tile;
  for (int64_t row = 0; row < n; row += kTileRows) {
    for (int64_t column = 0; column < k; column += kTileColumns) {
      const Sum tile{sum.values + row * sum.stride + column, sum.stride, sum.adds};
      if (row + kTileRows <= n && column + kTileColumns <= k) {
        multiply_tile(depth, left + row * depth, right + column * depth, tile);
      } else {
        multiply_corner(depth, left + row * depth, right + column * depth, tile,
                        std::min(kTileRows, n - row), std::min(kTileColumns, k - column));
      }
    }
  }
}

// Memory of the current thread for so many numbers, which may be anything. It begins with a line,
// so that no vector lies in two.
template <int kSide>
float* packed_of_thread(int64_t count) {
  thread_local std::vector<float> packed;
  if (static_cast<int64_t>(packed.size()) < count + kLine) packed.resize(count + kLine);
  void* first = packed.data();
  size_t size = packed.size() * sizeof(float);
  return static_cast<float*>(std::align(kLine * sizeof(float), count * sizeof(float), first, size));
}

// Multiplies n columns of the left with k of the right, packed, and adds what the former have to
// `left_sums`, if there are any.
void multiply_block(const Matrix& left, int64_t n, const float* packed_right, int64_t k,
                    int64_t depth, const Sum& sum, float* left_sums) {
  // A second thread costs more than it gives for less.
  constexpr int64_t kFewestMultiplications = int64_t{1} << 20;
  const int64_t grain = kFewestMultiplications / (kBlockLeft * depth * k) + 1;
  share_out((n + kBlockLeft - 1) / kBlockLeft, grain, [&](int64_t begin, int64_t end) {
    float* const packed_left = packed_of_thread<0>(kBlockLeft * depth);
    for (int64_t row = begin * kBlockLeft; row < std::min(end * kBlockLeft, n); row += kBlockLeft) {
      const int64_t num_rows = std::min(kBlockLeft, n - row);
      std::array<float, kBlockLeft> sums = {};
      kernels().pack_left({left.values + row, left.stride}, depth, num_rows, packed_left,
                          left_sums == nullptr ? nullptr : sums.data());
      if (left_sums != nullptr) {
        for (int64_t column = 0; column < num_rows; ++column)
          left_sums[row + column] += sums[column];
      }
      multiply_panels(depth, packed_left, num_rows, packed_right, k,
                      {sum.values + row * sum.stride, sum.stride, sum.adds});
    }
  });
}

void multiply(const Matrix& left, int64_t n, const Matrix& right, int64_t k, int64_t depth,
              const Sum& sum, float* left_sums) {
  if (left_sums != nullptr) std::fill_n(left_sums, n, 0.0f);
  for (int64_t column = 0; column < k; column += kBlockRight) {
    const int64_t num_columns = std::min(kBlockRight, k - column);
    for (int64_t first = 0; first < depth; first += kBlockDepth) {
      const int64_t length = std::min(kBlockDepth, depth - first);
      float* const packed_right = packed_of_thread<1>(length * padded(num_columns, kTileColumns));
      kernels().pack_right({right.values + first * right.stride + column, right.stride}, length,
                           num_columns, packed_right);
      multiply_block({left.values + first * left.stride, left.stride}, n, packed_right, num_columns,
                     length, {sum.values + column, sum.stride, sum.adds || first > 0},
                     column == 0 ? left_sums : nullptr);
    }
  }
}

Matrix matrix_of(const at::Tensor& rows) { return {rows.const_data_ptr<float>(), rows.stride(0)}; }

// Measured on one core with AVX-512, depth x n x k, speed over MKL's, with tiles of 8 x 32; with 6
// x 64 on another Xeon, sums of 80 MB in turns, 256 x 128 x 128 0.78, 256 x 256 x 256 0.85, 256 x
// 128 x 512 0.93, 256 x 256 x 1024 1.03, 64 x 256 x 256 1.24, 64 x 512 x 512 1.47. On an AMD EPYC
// 256 x 64 x 64 1.03, 64 x 128 x 128 1.06, 64 x 512 x 512 1.13, 1024 x 256 x 256 1.08, 256 x 1000 x
// 512 1.09; but 1024 x 100 x 100, whose tiles are a quarter padding, 0.85. On an Intel Xeon, whose
// caches held all, 256 x 128 x 128 0.81, 256 x 512 x 128 0.91, 256 x 512 x 512 1.01, 256 x 512 x
// 2048 0.93, 256 x 2048 x 512 1.01, 1024 x 1024 x 256 1.03; with sums of 80 MB in turns 64 x 512 x
// 512 1.5, 40 x 128 x 9216 1.2, 256 x 1000 x 512 1.0, but 8 x 1024 x 1024 0.75.
bool is_faster(int64_t depth, int64_t n, int64_t k) {
  static const int64_t fewest_multiplications = int64_t{1} << (POPTORCH_EMU_IS_AMD ? 20 : 25);
  constexpr int64_t kLeastDepth = 16;
  constexpr int64_t kMostPadding = 16;  // One part of so many.
  const int64_t padding = padded(n, kTileRows) * padded(k, kTileColumns) - n * k;
  return vectors::width() == 512 && depth >= kLeastDepth &&
         depth * n * k >= fewest_multiplications && padding <= n * k / kMostPadding;
}

}  // namespace
}  // namespace columns

at::Tensor Product::empty_sum() const {
  return at::empty({left.size(0), right.size(1)}, left.options());
}

void multiply_columns(const Product& product, bool adds, at::Tensor& sum) {
  const auto& [left, right, row_sums] = product;
  const int64_t n = left.size(0), k = right.size(1), depth = right.size(0);
  TORCH_INTERNAL_ASSERT(depth > 0 && left.size(1) == depth && sum.is_contiguous() &&
                        sum.size(0) == n && sum.size(1) == k);
  const at::Tensor a = with_dense_rows(left.t()), b = with_dense_rows(right);
  if (row_sums != nullptr) *row_sums = at::empty({n}, left.options());
  columns::multiply(columns::matrix_of(a), n, columns::matrix_of(b), k, depth,
                    {sum.mutable_data_ptr<float>(), k, adds},
                    row_sums == nullptr ? nullptr : row_sums->mutable_data_ptr<float>());
}

void multiply_by_faster_kernel(const Product& product, bool adds, at::Tensor& sum) {
  const auto& [left, right, row_sums] = product;
  const bool is_single = left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat;
  if (is_single && is_small_product(left.size(0), right.size(0), right.size(1))) {
    multiply_small(left, right, adds, sum);
    if (row_sums != nullptr) *row_sums = sum_small_columns(left.t());
    return;
  }
  if (is_single && columns::is_faster(right.size(0), left.size(0), right.size(1))) {
    multiply_columns(product, adds, sum);
    return;
  }
  if (adds) {
    sum.addmm_(left, right);
  } else {
    at::mm_out(sum, left, right);
  }
  if (row_sums != nullptr) *row_sums = left.sum(1);
}

at::Tensor sums_beside_product(const at::Tensor& columns, int64_t k) {
  const int64_t depth = columns.size(0), n = columns.size(1);
  if (columns.scalar_type() != at::kFloat) return columns.sum(0);
  if (is_small_product(n, depth, k)) return sum_small_columns(columns);
  return columns::is_faster(depth, n, k) ? sum_columns(columns) : columns.sum(0);
}

}  // namespace poptorch_emu

#pragma GCC pop_options
