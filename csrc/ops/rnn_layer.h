#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace poptorch_emu::rnn {

enum class Mode { kLstm, kGru, kRnnTanh, kRnnRelu };

// Throws ValueError unless `name` is "lstm", "gru", "rnn_tanh" or "rnn_relu".
Mode mode_of(std::string_view name);

// What one layer in one direction computes from. T steps, N rows, I inputs, H hidden, P outputs
// (P = H without projection), G gates in PyTorch's order: input (T, N, I); state h0 (N, P) and, for
// an LSTM, c0 (N, H); weights w_ih (G H, I), w_hh (G H, P), perhaps b_ih and b_hh (G H), perhaps
// w_hr (P, H).
struct Layer {
  Mode mode;
  bool is_reverse;
  at::Tensor input;
  std::vector<at::Tensor> state;
  std::vector<at::Tensor> weights;

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
  // How many values of size (N, H) backward wants of each step.
  int64_t num_saved() const;
  int64_t num_steps() const { return input.size(0); }
  int64_t batch_size() const { return input.size(1); }
  int64_t hidden_size() const { return w_hh().size(0) / num_gates(); }
  int64_t output_size() const { return w_hh().size(1); }
  // The row of the k-th step that is taken.
  int64_t row(int64_t k) const { return is_reverse ? num_steps() - 1 - k : k; }
};

// output (T, N, P), h (N, P), c (N, H), and what backward needs; c and reserve may be empty.
struct Results {
  at::Tensor output;
  at::Tensor h;
  at::Tensor c;
  at::Tensor reserve;
};

// The gradients of a layer's results, all defined; that of the output may be missing, for zeros,
// where the layer runs by rows.
struct ResultGradients {
  at::Tensor output;
  at::Tensor h;
  at::Tensor c;
};

// The gradients of what a layer computes from; that of the input only on demand.
struct Gradients {
  at::Tensor input;
  std::vector<at::Tensor> state;
  std::vector<at::Tensor> weights;
};

// Step by step with ATen's kernels, in eager PyTorch's order of operations.
Results forward_by_steps(const Layer& layer, bool is_training);
Gradients backward_by_steps(const Layer& layer, const Results& results,
                            const ResultGradients& gradients, bool needs_input_gradient);

}  // namespace poptorch_emu::rnn
