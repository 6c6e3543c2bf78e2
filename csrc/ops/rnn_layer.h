#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace poptorch_emu::rnn {

enum class Mode { kLstm, kGru, kRnnTanh, kRnnRelu };

// Returns the mode for "lstm", "gru", "rnn_tanh" or "rnn_relu"; throws ValueError for other names.
Mode mode_of(std::string_view name);

// The arguments of one layer in one direction. With T steps, N rows, I inputs, H hidden units, P
// outputs (P = H without projection) and G gates in PyTorch's order, the shapes are: input (T, N,
// I); state h0 (N, P) and, for an LSTM, c0 (N, H); weights w_ih (G H, I), w_hh (G H, P), optionally
// b_ih and b_hh (G H), optionally w_hr (P, H).
struct Layer {
  Mode mode;
  bool is_reverse;
  at::Tensor input;
  std::vector<at::Tensor> state;
  std::vector<at::Tensor> weights;
  bool is_by_rows = false;  // whether training runs by blocks of rows (`lstm_rows.h`)

  bool has_biases() const { return weights.size() >= 4; }
  bool has_projection() const { return weights.size() % 2 == 1; }
  const at::Tensor& h0() const { return state[0]; }
  const at::Tensor& c0() const { return state[1]; }
  const at::Tensor& w_ih() const { return weights[0]; }
  const at::Tensor& w_hh() const { return weights[1]; }
  const at::Tensor& b_ih() const { return weights[2]; }
  const at::Tensor& b_hh() const { return weights[3]; }
  const at::Tensor& w_hr() const { return weights.back(); }

  int64_t num_gates() const;
  // Returns how many values of size (N, H) backward needs from each step.
  int64_t num_saved() const;
  int64_t num_steps() const { return input.size(0); }
  int64_t batch_size() const { return input.size(1); }
  int64_t hidden_size() const { return w_hh().size(0) / num_gates(); }
  int64_t output_size() const { return w_hh().size(1); }
  // Returns the time step that is processed as number k.
  int64_t row(int64_t k) const { return is_reverse ? num_steps() - 1 - k : k; }
};

// Results: output (T, N, P), h (N, P), c (N, H), reserve for backward; the last two may be empty.
struct Results {
  at::Tensor output;
  at::Tensor h;
  at::Tensor c;
  at::Tensor reserve;
};

// Gradients of a layer's results. All are defined, except that a layer by rows accepts an undefined
// output gradient as zero.
struct ResultGradients {
  at::Tensor output;
  at::Tensor h;
  at::Tensor c;
};

// Gradients of a layer's arguments; that of the input only on request.
struct Gradients {
  at::Tensor input;
  std::vector<at::Tensor> state;
  std::vector<at::Tensor> weights;
};

// Runs the layer step by step with ATen's kernels, in the order of operations of eager PyTorch.
Results forward_by_steps(const Layer& layer, bool is_training);
Gradients backward_by_steps(const Layer& layer, const Results& results,
                            const ResultGradients& gradients, bool needs_input_gradient);

}  // namespace poptorch_emu::rnn
