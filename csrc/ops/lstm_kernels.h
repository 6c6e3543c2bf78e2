#pragma once

#include <array>
#include <cstdint>

namespace poptorch_emu::rnn {

// Arguments for one row of an LSTM step, with `size` hidden units and their gates i, f, g and o.

struct CellForward {
  // On entry the sums that enter each gate, on return the gates.
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
  // On entry the gradient of c, on return the gradient of the previous c.
  float* grad_c;
  // On return the gradients of the sums that enter the gates.
  float* d_i;
  float* d_f;
  float* d_g;
  float* d_o;
};

// A product of a few rows: sums = start + a b. The panels of b have `kPanel` columns each and lie
// one after the other, (panels, depth, kPanel). The order of additions depends on the depth only.
constexpr int64_t kRows = 8;
constexpr int64_t kPanel = 32;
struct RowProduct {
  std::array<const float*, kRows> a;  // left rows, each of length depth
  std::array<const float*, kRows> start;
  std::array<float*, kRows> sums;
};

// Kernels for one processor level; all levels compute the same bits.
struct LstmKernels {
  void (*run_cell)(int64_t size, const CellForward& row);
  void (*run_cell_backward)(int64_t size, const CellBackward& row);
  void (*run_product)(int64_t depth, int64_t num_panels, const float* panels,
                      const RowProduct& rows);
};

// Returns the kernels for this processor; `nullptr` if it lacks vectors (`vectors::width`).
const LstmKernels* lstm_kernels();

}  // namespace poptorch_emu::rnn
