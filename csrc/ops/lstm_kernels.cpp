// The inner loops of an LSTM by rows, for processors with AVX-512 or AVX2.
//
// Sigmoid and tanh use one exponential, whose polynomial was fitted to a relative error of 3e-9
// before rounding. Near 0, tanh uses a separate polynomial, fitted to 4e-9. Each result is within a
// few units in the last place, like vectorised library code; `tests/unit/csrc/ops/test_rnn.py`
// measures the error.

#include "ops/lstm_kernels.h"

#include "common/vectors.h"
#include "numerics/gemm/register_tile.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace poptorch_emu::rnn {
namespace {

// Returns e^x for x in [-87, 87]; NaN stays NaN.
POPTORCH_EMU_INLINE float exponential(float x) {
  // Adding this constant leaves the rounded integer in the last bits.
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts; n times the first part is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float q =
      (((0.0013950478751212358f * r + 0.008368882350623608f) * r + 0.04166620597243309f) * r +
       0.1666651964187622f) *
          r +
      0.5f;
  const float fraction = (q * r) * r + r + 1.0f;
  const auto power = (__builtin_bit_cast(uint32_t, shifted) << 23) + (127u << 23);
  return fraction * __builtin_bit_cast(float, power);
}

POPTORCH_EMU_INLINE float clamped(float x, float bound) {
  const float above = x < -bound ? -bound : x;
  return above > bound ? bound : above;
}

POPTORCH_EMU_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + exponential(clamped(-x, 87.0f)));
}

POPTORCH_EMU_INLINE float tanh(float x) {
  const float size = __builtin_fabsf(x);
  const float far = 1.0f - 2.0f / (1.0f + exponential(clamped(2.0f * size, 87.0f)));
  const float z = x * x;
  const float p =
      (((-0.005717043299227953f * z + 0.020650586113333702f) * z - 0.05374349653720856f) * z +
       0.13331490755081177f) *
          z -
      0.3333328366279602f;
  const float near = size + size * (z * p);
  return __builtin_copysignf(size < 0.625f ? near : far, x);
}

// Number of products that are summed before they are added to the total, to round less.
constexpr int64_t kPart = 64;

POPTORCH_EMU_INLINE void run_cell(int64_t size, const CellForward& row) {
  float* i = row.i;
  float* f = row.f;
  float* g = row.g;
  float* o = row.o;
  const float* previous_c = row.previous_c;
  float* c = row.c;
  float* h = row.h;
#pragma GCC ivdep  // The rows do not overlap.
  for (int64_t k = 0; k < size; ++k) {
    i[k] = sigmoid(i[k]);
    f[k] = sigmoid(f[k]);
    g[k] = tanh(g[k]);
    o[k] = sigmoid(o[k]);
    c[k] = f[k] * previous_c[k] + i[k] * g[k];
    h[k] = o[k] * tanh(c[k]);
  }
}

POPTORCH_EMU_INLINE void run_cell_backward(int64_t size, const CellBackward& row) {
  const float* i = row.i;
  const float* f = row.f;
  const float* g = row.g;
  const float* o = row.o;
  const float* previous_c = row.previous_c;
  const float* c = row.c;
  const float* grad_h = row.grad_h;
  float* grad_c = row.grad_c;
  float* d_i = row.d_i;
  float* d_f = row.d_f;
  float* d_g = row.d_g;
  float* d_o = row.d_o;
#pragma GCC ivdep  // The rows do not overlap.
  for (int64_t k = 0; k < size; ++k) {
    const float d_h = grad_h[k];
    const float squashed = tanh(c[k]);
    const float d_c = grad_c[k] + d_h * o[k] * (1.0f - squashed * squashed);
    d_o[k] = d_h * squashed * o[k] * (1.0f - o[k]);
    d_i[k] = d_c * g[k] * i[k] * (1.0f - i[k]);
    d_f[k] = d_c * previous_c[k] * f[k] * (1.0f - f[k]);
    d_g[k] = d_c * i[k] * (1.0f - g[k] * g[k]);
    grad_c[k] = d_c * f[k];
  }
}

struct RowsOfLeft {
  const float* const* rows;
  int64_t begin;
  POPTORCH_EMU_INLINE float operator()(int64_t row, int64_t k) const {
    return rows[row][begin + k];
  }
};

// Adds the products of `length` columns, from `begin` on, to the product of `kCount` rows with a
// panel. `column` is the position of the panel's columns in the sums.
template <class Width, int64_t kCount>
POPTORCH_EMU_INLINE void add_part(int64_t first, int64_t begin, int64_t length, const float* b,
                                  int64_t column, const RowProduct& rows) {
  RegisterTile<Width, kCount, kPanel> tile;
  tile.add_many(length, RowsOfLeft{rows.a.data() + first, begin}, b, kPanel);
#pragma GCC unroll 8
  for (int64_t row = first; row < first + kCount; ++row) {
    const float* const so_far = begin == 0 ? rows.start[row] : rows.sums[row];
    tile.write_added(row - first, so_far + column, rows.sums[row] + column);
  }
}

template <class Width>
POPTORCH_EMU_INLINE void run_product(int64_t depth, int64_t num_panels, const float* panels,
                                     const RowProduct& rows) {
  constexpr int64_t kAtOnce = kRowsAtOnce<Width>, kRest = kRows % kAtOnce;
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    const int64_t column = panel * kPanel;
    for (int64_t begin = 0; begin < depth; begin += kPart) {
      const int64_t length = begin + kPart < depth ? kPart : depth - begin;
      const float* const b = panels + column * depth + begin * kPanel;
      for (int64_t row = 0; row < kRows - kRest; row += kAtOnce)
        add_part<Width, kAtOnce>(row, begin, length, b, column, rows);
      if constexpr (kRest > 0)
        add_part<Width, kRest>(kRows - kRest, begin, length, b, column, rows);
    }
  }
}

namespace avx512 {
POPTORCH_EMU_AVX512 void run_cell(int64_t size, const CellForward& row) {
  rnn::run_cell(size, row);
}
POPTORCH_EMU_AVX512 void run_cell_backward(int64_t size, const CellBackward& row) {
  rnn::run_cell_backward(size, row);
}
POPTORCH_EMU_AVX512 void run_product(int64_t depth, int64_t num_panels, const float* panels,
                                     const RowProduct& rows) {
  rnn::run_product<vectors::Avx512>(depth, num_panels, panels, rows);
}
}  // namespace avx512

namespace avx2 {
POPTORCH_EMU_AVX2 void run_cell(int64_t size, const CellForward& row) { rnn::run_cell(size, row); }
POPTORCH_EMU_AVX2 void run_cell_backward(int64_t size, const CellBackward& row) {
  rnn::run_cell_backward(size, row);
}
POPTORCH_EMU_AVX2 void run_product(int64_t depth, int64_t num_panels, const float* panels,
                                   const RowProduct& rows) {
  rnn::run_product<vectors::Avx2>(depth, num_panels, panels, rows);
}
}  // namespace avx2

}  // namespace

const LstmKernels* lstm_kernels() {
  static constexpr LstmKernels kWithAvx512{avx512::run_cell, avx512::run_cell_backward,
                                           avx512::run_product};
  static constexpr LstmKernels kWithAvx2{avx2::run_cell, avx2::run_cell_backward,
                                         avx2::run_product};
  switch (vectors::width()) {
    case 512:
      return &kWithAvx512;
    case 256:
      return &kWithAvx2;
    default:
      return nullptr;
  }
}

}  // namespace poptorch_emu::rnn

#pragma GCC pop_options
