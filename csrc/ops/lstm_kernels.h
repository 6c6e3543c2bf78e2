#pragma once

#include <array>
#include <cstdint>

namespace poptorch_emu::rnn {

// One row of an LSTM's step: `size` hidden units whose gates lie at i, f, g and o.

struct CellForward {
  // In: what enters each gate. Out: the gates.
  float* i;
  float* f;
  float* g;
  float* o;
  const float* previous_c;
  float* c;
  float* h;
};

struct CellBackward {
  const float* i;
  const float* f;
  const float* g;
  const float* o;
  const float* previous_c;
  const float* c;
  const float* grad_h;
  // In: what reaches c. Out: what reaches the previous c.
  float* grad_c;
  // Out: the gradients of what enters the gates.
  float* d_i;
  float* d_f;
  float* d_g;
  float* d_o;
};

// A product of a few rows: sums = start + a b. The panels of b have `kPanel` columns each and lie
// one after the other, (panels, depth, kPanel). The order of additions depends on the depth alone.
constexpr int64_t kRows = 8;
constexpr int64_t kPanel = 32;
struct RowProduct {
  std::array<const float*, kRows> a;  // by row, of length depth
  std::array<const float*, kRows> start;
  std::array<float*, kRows> sums;
};

// All kinds give the same bits.
struct LstmKernels {
  void (*run_cell)(int64_t size, const CellForward& row);
  void (*run_cell_backward)(int64_t size, const CellBackward& row);
  void (*run_product)(int64_t depth, int64_t num_panels, const float* panels,
                      const RowProduct& rows);
};

// Those for this processor; `nullptr` if there are none, for want of vectors (`vectors::width`).
const LstmKernels* lstm_kernels();

}  // namespace poptorch_emu::rnn
