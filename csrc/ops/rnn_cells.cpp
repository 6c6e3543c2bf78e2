#include "ops/rnn_cells.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

// Names: T steps, B sequences, H hidden units. Gates are in PyTorch's order: reset, update, new in a
// GRU; input, forget, cell, output in an LSTM.

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;

// Times in the order in which they are visited.
std::vector<int64_t> times(int64_t length, bool is_ascending) {
  std::vector<int64_t> times(length);
  for (int64_t i = 0; i < length; ++i) times[i] = is_ascending ? i : length - 1 - i;
  return times;
}

std::vector<int64_t> forward_times(int64_t length, Direction direction) {
  return times(length, direction == Direction::kForward);
}

std::vector<int64_t> backward_times(int64_t length, Direction direction) {
  return times(length, direction == Direction::kReverse);
}

// The state before each step, from the first one and those after the steps.
Tensor states_before(const Tensor& first, const Tensor& states, Direction direction) {
  const int64_t others = states.size(0) - 1;
  return direction == Direction::kForward
             ? at::cat({first.unsqueeze(0), states.narrow(0, 0, others)})
             : at::cat({states.narrow(0, 1, others), first.unsqueeze(0)});
}

int64_t last_time(const Tensor& output, Direction direction) {
  return direction == Direction::kForward ? output.size(0) - 1 : 0;
}

// Columns [first, first + count) of a tensor whose last dimension is made of blocks of H.
Tensor columns(const Tensor& gates, int64_t hidden, int64_t first, int64_t count = 1) {
  return gates.narrow(-1, first * hidden, count * hidden);
}

std::vector<Tensor> by_time(const Tensor& gates, int64_t hidden, int64_t first, int64_t count = 1) {
  return columns(gates, hidden, first, count).unbind(0);
}

Tensor flat(const Tensor& values) { return values.flatten(0, 1); }

Tensor sum_of(const Tensor& b_ih, const Tensor& b_hh) {
  return b_ih.defined() ? b_ih + b_hh : Tensor();
}

Tensor or_zeros(const Tensor& grad, const Tensor& like) {
  return grad.defined() ? grad : at::zeros_like(like);
}

// A new [T, B, count * H] whose first columns hold `gates`.
Tensor widen(const Tensor& gates, int64_t hidden, int64_t count) {
  Tensor wide = at::empty({gates.size(0), gates.size(1), count * hidden}, gates.options());
  wide.narrow(2, 0, gates.size(2)).copy_(gates);
  return wide;
}

Result run_simple(const Tensor& input, const State& first, const Weights& weights, Mode mode,
                  Direction direction) {
  const Tensor output = at::linear(input, weights.w_ih, sum_of(weights.b_ih, weights.b_hh));
  const Tensor w_hh_t = weights.w_hh.t();
  const auto outputs = output.unbind(0);
  Tensor h = first.h;
  for (const int64_t t : forward_times(input.size(0), direction)) {
    h = outputs[t].addmm_(h, w_hh_t);
    mode == Mode::kTanh ? h.tanh_() : h.relu_();
  }
  return {output, {h.clone(), {}}, at::empty({0}, input.options())};
}

// Reserve: reset, update, new, and the hidden part of new.
Result run_gru(const Tensor& input, const State& first, const Weights& weights,
               Direction direction) {
  const int64_t hidden = weights.w_hh.size(1);
  const Tensor reserve = widen(at::linear(input, weights.w_ih, weights.b_ih), hidden, 4);
  const Tensor output = at::empty({input.size(0), input.size(1), hidden}, input.options());
  const auto reset_update = by_time(reserve, hidden, 0, 2);
  const auto reset = by_time(reserve, hidden, 0);
  const auto update = by_time(reserve, hidden, 1);
  const auto fresh = by_time(reserve, hidden, 2);
  const auto hidden_part = by_time(reserve, hidden, 3);
  auto outputs = output.unbind(0);
  Tensor h = first.h;
  for (const int64_t t : forward_times(input.size(0), direction)) {
    const Tensor gates = at::linear(h, weights.w_hh, weights.b_hh);
    reset_update[t].add_(columns(gates, hidden, 0, 2)).sigmoid_();
    hidden_part[t].copy_(columns(gates, hidden, 2));
    fresh[t].addcmul_(reset[t], hidden_part[t]).tanh_();
    h = at::addcmul_out(outputs[t], fresh[t], update[t], h - fresh[t]);
  }
  return {output, {h.clone(), {}}, reserve};
}

// Reserve: the four gates and the cell after the step.
Result run_lstm(const Tensor& input, const State& first, const Weights& weights,
                Direction direction) {
  const int64_t hidden = weights.w_hh.size(0) / 4;
  const Tensor bias = sum_of(weights.b_ih, weights.b_hh);
  const Tensor reserve = widen(at::linear(input, weights.w_ih, bias), hidden, 5);
  const Tensor output =
      at::empty({input.size(0), input.size(1), weights.w_hh.size(1)}, input.options());
  const Tensor w_hh_t = weights.w_hh.t();
  const auto gates = by_time(reserve, hidden, 0, 4);
  const auto in_forget = by_time(reserve, hidden, 0, 2);
  const auto in = by_time(reserve, hidden, 0);
  const auto forget = by_time(reserve, hidden, 1);
  const auto cell = by_time(reserve, hidden, 2);
  const auto out = by_time(reserve, hidden, 3);
  auto cells = by_time(reserve, hidden, 4);
  auto outputs = output.unbind(0);
  State now = first;
  for (const int64_t t : forward_times(input.size(0), direction)) {
    gates[t].addmm_(now.h, w_hh_t);
    in_forget[t].sigmoid_();
    cell[t].tanh_();
    out[t].sigmoid_();
    now.c = at::mul_out(cells[t], forget[t], now.c).addcmul_(in[t], cell[t]);
    now.h = weights.w_hr.defined()
                ? at::mm_out(outputs[t], now.c.tanh().mul_(out[t]), weights.w_hr.t())
                : at::mul_out(outputs[t], now.c.tanh(), out[t]);
  }
  return {output, {now.h.clone(), now.c.clone()}, reserve};
}

// What is left when the gradients of the gates are known: all of it in large GEMMs.
Gradients gradients_of(const Tensor& grad_input_gates, const Tensor& grad_hidden_gates,
                       const State& grad_first, const Tensor& input, const Tensor& h_before,
                       const Weights& weights) {
  const Tensor at_input = flat(grad_input_gates);
  const Tensor at_hidden = flat(grad_hidden_gates);
  Weights grads{at_input.t().mm(flat(input)), at_hidden.t().mm(flat(h_before)), {}, {}, {}};
  if (weights.b_ih.defined()) {
    grads.b_ih = at_input.sum(0);
    grads.b_hh = at_hidden.sum(0);
  }
  return {at_input.mm(weights.w_ih).view(input.sizes()), grad_first, grads};
}

// In each of the three functions below, `factors` first holds the derivatives of a step's gates by
// its state; the loop turns them into the gradients of the gates.

Gradients backward_simple(const Tensor& input, const State& first, const Weights& weights,
                          const Tensor& output, const std::vector<Tensor>& grad_outputs,
                          const State& grad_last, Mode mode, Direction direction) {
  const Tensor factors =
      mode == Mode::kTanh ? 1 - output * output : (output > 0).to(output.dtype());
  const auto factor = factors.unbind(0);
  Tensor grad_h = grad_last.h;
  for (const int64_t t : backward_times(input.size(0), direction)) {
    grad_h = factor[t].mul_(grad_h.add(grad_outputs[t])).mm(weights.w_hh);
  }
  const Tensor h_before = states_before(first.h, output, direction);
  return gradients_of(factors, factors, {grad_h, {}}, input, h_before, weights);
}

Gradients backward_gru(const Tensor& input, const State& first, const Weights& weights,
                       const Tensor& output, const Tensor& reserve,
                       const std::vector<Tensor>& grad_outputs, const State& grad_last,
                       Direction direction) {
  const int64_t hidden = weights.w_hh.size(1);
  const Tensor h_before = states_before(first.h, output, direction);
  const auto saved = reserve.chunk(4, -1);
  const Tensor &reset = saved[0], update = saved[1], fresh = saved[2], hidden_part = saved[3];
  const Tensor by_fresh = (1 - update) * (1 - fresh * fresh);
  const Tensor by_hidden_part = by_fresh * reset;
  const Tensor by_reset = by_hidden_part * hidden_part * (1 - reset);
  const Tensor by_update = (h_before - fresh) * update * (1 - update);
  // Reset, update and the hidden part of new make the gradient of the hidden gates.
  const Tensor factors = at::cat({by_reset, by_update, by_hidden_part, by_fresh}, -1);
  const auto factor = factors.unflatten(-1, {4, hidden}).unbind(0);
  const auto hidden_gates = by_time(factors, hidden, 0, 3);
  const auto updates = update.unbind(0);
  Tensor grad_h = grad_last.h;
  for (const int64_t t : backward_times(input.size(0), direction)) {
    grad_h = grad_h.add(grad_outputs[t]);
    factor[t].mul_(grad_h.unsqueeze(1));
    grad_h = grad_h.mul_(updates[t]).addmm_(hidden_gates[t], weights.w_hh);
  }
  const Tensor input_gates =
      at::cat({columns(factors, hidden, 0, 2), columns(factors, hidden, 3)}, -1);
  return gradients_of(input_gates, columns(factors, hidden, 0, 3), {grad_h, {}}, input, h_before,
                      weights);
}

Gradients backward_lstm(const Tensor& input, const State& first, const Weights& weights,
                        const Tensor& output, const Tensor& reserve,
                        const std::vector<Tensor>& grad_outputs, const State& grad_last,
                        Direction direction) {
  const int64_t hidden = weights.w_hh.size(0) / 4;
  const auto saved = reserve.chunk(5, -1);
  const Tensor &in = saved[0], forget = saved[1], cell = saved[2], out = saved[3];
  const Tensor tanh_c = saved[4].tanh();
  const Tensor c_before = states_before(first.c, saved[4], direction);
  const Tensor factors = at::cat({cell * in * (1 - in), c_before * forget * (1 - forget),
                                  in * (1 - cell * cell), tanh_c * out * (1 - out)},
                                 -1);
  const auto gates = factors.unbind(0);
  const auto by_cell = columns(factors, hidden, 0, 3).unflatten(-1, {3, hidden}).unbind(0);
  const auto by_hidden = by_time(factors, hidden, 3);
  const auto cell_by_hidden = (out * (1 - tanh_c * tanh_c)).unbind(0);
  const auto forgets = forget.unbind(0);
  std::vector<Tensor> grad_projected(input.size(0));
  Tensor grad_h = grad_last.h;
  Tensor grad_c = grad_last.c.clone();
  for (const int64_t t : backward_times(input.size(0), direction)) {
    grad_h = grad_h.add(grad_outputs[t]);
    if (weights.w_hr.defined()) {
      grad_projected[t] = grad_h;
      grad_h = grad_h.mm(weights.w_hr);
    }
    grad_c.addcmul_(grad_h, cell_by_hidden[t]);
    by_cell[t].mul_(grad_c.unsqueeze(1));
    by_hidden[t].mul_(grad_h);
    grad_c.mul_(forgets[t]);
    grad_h = gates[t].mm(weights.w_hh);
  }
  const Tensor h_before = states_before(first.h, output, direction);
  Gradients grads =
      gradients_of(factors, factors, {grad_h, grad_c}, input, h_before, weights);
  if (weights.w_hr.defined()) {
    grads.weights.w_hr = at::cat(grad_projected).t().mm(flat(out * tanh_c));
  }
  return grads;
}

}  // namespace

Mode mode_of(std::string_view name) {
  if (name == "tanh") return Mode::kTanh;
  if (name == "relu") return Mode::kRelu;
  if (name == "gru") return Mode::kGru;
  if (name == "lstm") return Mode::kLstm;
  TORCH_CHECK_VALUE(false, "rnn_layer: mode is ", name, "; expected tanh, relu, gru or lstm.");
}

int64_t reserve_per_element(Mode mode) {
  switch (mode) {
    case Mode::kTanh:
    case Mode::kRelu: return 0;
    case Mode::kGru: return 4;
    case Mode::kLstm: return 5;
  }
  TORCH_INTERNAL_ASSERT(false);
}

Result forward(const Tensor& input, const State& first, const Weights& weights, Mode mode,
               Direction direction) {
  switch (mode) {
    case Mode::kTanh:
    case Mode::kRelu: return run_simple(input, first, weights, mode, direction);
    case Mode::kGru: return run_gru(input, first, weights, direction);
    case Mode::kLstm: return run_lstm(input, first, weights, direction);
  }
  TORCH_INTERNAL_ASSERT(false);
}

Gradients backward(const Tensor& input, const State& first, const Weights& weights,
                   const Tensor& output, const Tensor& reserve, const Tensor& grad_output,
                   const State& grad_last, Mode mode, Direction direction) {
  const auto grad_outputs = or_zeros(grad_output, output).unbind(0);
  State grad{or_zeros(grad_last.h, first.h), {}};
  if (mode == Mode::kLstm) grad.c = or_zeros(grad_last.c, first.c);
  switch (mode) {
    case Mode::kTanh:
    case Mode::kRelu:
      return backward_simple(input, first, weights, output, grad_outputs, grad, mode, direction);
    case Mode::kGru:
      return backward_gru(input, first, weights, output, reserve, grad_outputs, grad, direction);
    case Mode::kLstm:
      return backward_lstm(input, first, weights, output, reserve, grad_outputs, grad, direction);
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace poptorch_emu::rnn
