#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

// One layer of a recurrent network in one direction, as loops over PyTorch's operators: a batched
// GEMM before the steps (inputs) and after them (gradients of weights), little in between.
namespace poptorch_emu::rnn {

enum class Mode { kTanh, kRelu, kGru, kLstm };
enum class Direction { kForward, kReverse };

// Of "tanh", "relu", "gru" and "lstm"; throws for another name.
Mode mode_of(std::string_view name);

// The parameters, named and laid out as in torch.nn. Biases may be undefined; so may the projection
// `w_hr`, which only an LSTM has.
struct Weights {
  at::Tensor w_ih, w_hh, b_ih, b_hh, w_hr;
};

// What the steps start from: `c` is undefined but in an LSTM.
struct State {
  at::Tensor h, c;
};

// `reserve` is what `backward` wants of the steps; it is ours alone.
struct Result {
  at::Tensor output;
  State last;
  at::Tensor reserve;
};

struct Gradients {
  at::Tensor input;
  State first;
  Weights weights;
};

// How much `reserve` holds for one element of the hidden state in one step.
int64_t reserve_per_element(Mode mode);

// `input` is [time, batch, feature], a state [batch, feature].
Result forward(const at::Tensor& input, const State& first, const Weights& weights, Mode mode,
               Direction direction);

// `grad_output` and the members of `grad_last` may be undefined, which means zero.
Gradients backward(const at::Tensor& input, const State& first, const Weights& weights,
                   const at::Tensor& output, const at::Tensor& reserve,
                   const at::Tensor& grad_output, const State& grad_last, Mode mode,
                   Direction direction);

}  // namespace poptorch_emu::rnn
