// Recurrent layers as loops over their steps.
//
// The product with the input is one matrix product for all steps, and so is each weight gradient. A
// step only computes the product with the hidden state and a few elementwise operations.

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>

#include "ops/rnn_layer.h"

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;
using Steps = std::vector<Tensor>;

// Returns gates [first, first + count) of each step of `values` (T, N, G H).
Tensor gates(const Tensor& values, int64_t first, int64_t count, int64_t hidden_size) {
  return values.narrow(2, first * hidden_size, count * hidden_size);
}

Steps gate_steps(const Tensor& values, int64_t first, int64_t count, int64_t hidden_size) {
  return gates(values, first, count, hidden_size).unbind();
}

// Computes out = state w_hh^T + b_hh.
void hidden_product(const Layer& layer, const Tensor& state, Tensor& out) {
  if (layer.has_biases()) {
    at::addmm_out(out, layer.b_hh(), state, layer.w_hh().t());
  } else {
    at::mm_out(out, state, layer.w_hh().t());
  }
}

// Returns a tensor whose row t is the value before time step t.
Tensor previous(const Layer& layer, const Tensor& values, const Tensor& initial) {
  const int64_t others = layer.num_steps() - 1;
  const Tensor first = initial.unsqueeze(0);
  return layer.is_reverse ? at::cat({values.narrow(0, 1, others), first})
                          : at::cat({first, values.narrow(0, 0, others)});
}

void rnn_forward(const Layer& layer, const Steps& x, Steps& output) {
  Tensor h = layer.h0();
  for (int64_t k = 0; k < layer.num_steps(); ++k) {
    Tensor& out = output[layer.row(k)];
    hidden_product(layer, h, out);
    out.add_(x[layer.row(k)]);
    layer.mode == Mode::kRnnTanh ? out.tanh_() : out.relu_();
    h = out;
  }
}

// Runs a GRU and saves r, z, the product that r scales, and n.
void gru_forward(const Layer& layer, const Tensor& x, const Tensor& saved, Steps& output) {
  const int64_t size = layer.hidden_size();
  const Steps x_rz = gate_steps(x, 0, 2, size), x_n = gate_steps(x, 2, 1, size);
  Steps product = gate_steps(saved, 0, 3, size);
  const Steps rz = gate_steps(saved, 0, 2, size), r = gate_steps(saved, 0, 1, size),
              z = gate_steps(saved, 1, 1, size), product_n = gate_steps(saved, 2, 1, size);
  Steps n = gate_steps(saved, 3, 1, size);
  Tensor h = layer.h0();
  for (int64_t k = 0; k < layer.num_steps(); ++k) {
    const int64_t t = layer.row(k);
    const int64_t s = t % static_cast<int64_t>(n.size());
    hidden_product(layer, h, product[s]);
    rz[s].add_(x_rz[t]).sigmoid_();
    at::mul_out(n[s], product_n[s], r[s]).add_(x_n[t]).tanh_();
    h = at::sub_out(output[t], h, n[s]).mul_(z[s]).add_(n[s]);
  }
}

// Runs an LSTM and saves i, f, g, o and c.
void lstm_forward(const Layer& layer, const Steps& x, const Tensor& saved, Steps& output) {
  const int64_t size = layer.hidden_size();
  Steps all = gate_steps(saved, 0, 4, size), c = gate_steps(saved, 4, 1, size);
  const Steps input_forget = gate_steps(saved, 0, 2, size), i = gate_steps(saved, 0, 1, size),
              f = gate_steps(saved, 1, 1, size), g = gate_steps(saved, 2, 1, size),
              o = gate_steps(saved, 3, 1, size);
  Tensor h = layer.h0();
  Tensor last_c = layer.c0();
  for (int64_t k = 0; k < layer.num_steps(); ++k) {
    const int64_t t = layer.row(k);
    const int64_t s = t % static_cast<int64_t>(c.size());
    hidden_product(layer, h, all[s]);
    all[s].add_(x[t]);
    input_forget[s].sigmoid_();
    g[s].tanh_();
    o[s].sigmoid_();
    at::mul_out(c[s], f[s], last_c).add_(i[s] * g[s]);
    last_c = c[s];
    h = output[t];
    if (layer.has_projection()) {
      at::mm_out(h, o[s] * c[s].tanh(), layer.w_hr().t());
    } else {
      at::mul_out(h, o[s], c[s].tanh());
    }
  }
}

// Gradients of the sums that enter the gates of each step (T, N, G H), and of the initial state.
struct Deltas {
  Tensor input;      // gradient of the product with the input
  Tensor hidden;     // gradient of the product with the hidden state
  Tensor projected;  // gradient of the output (T, N, P), only with a projection
  Steps state;
};

Deltas rnn_backward(const Layer& layer, const Tensor& output, const ResultGradients& gradients) {
  const Tensor slope =
      layer.mode == Mode::kRnnTanh ? 1 - output * output : output.gt(0).to(output.scalar_type());
  const Tensor deltas = at::empty_like(output);
  Steps delta = deltas.unbind();
  const Steps slopes = slope.unbind(), grad_output = gradients.output.unbind();
  Tensor grad_h = gradients.h.clone();
  for (int64_t k = layer.num_steps() - 1; k >= 0; --k) {
    const int64_t t = layer.row(k);
    grad_h.add_(grad_output[t]);
    at::mul_out(delta[t], grad_h, slopes[t]);
    at::mm_out(grad_h, delta[t], layer.w_hh());
  }
  return {deltas, deltas, {}, {grad_h}};
}

// Computes gradients for h' = n + z (h - n), n = tanh(x_n + r p); r scales the product p.
Deltas gru_backward(const Layer& layer, const Results& results, const ResultGradients& gradients) {
  const int64_t size = layer.hidden_size();
  const Tensor& saved = results.reserve;
  const Tensor r = gates(saved, 0, 1, size), z = gates(saved, 1, 1, size),
               p = gates(saved, 2, 1, size), n = gates(saved, 3, 1, size);
  const Tensor keep = 1 - z;
  const Tensor from_h = previous(layer, results.output, layer.h0());
  const Steps dz_by_dh = (from_h - n).mul_(z).mul_(keep).unbind(),
              dn_by_dh = (1 - n * n).mul_(keep).unbind(),
              dr_by_dn = (1 - r).mul_(r).mul_(p).unbind(), rs = r.unbind(), zs = z.unbind(),
              grad_output = gradients.output.unbind();
  // The first two gates have the same gradient in both products.
  const Tensor hidden = at::empty({layer.num_steps(), layer.batch_size(), 3 * size}, r.options());
  const Tensor delta_n = at::empty_like(n, at::MemoryFormat::Contiguous);
  const Steps all = hidden.unbind();
  Steps dr = gate_steps(hidden, 0, 1, size), dz = gate_steps(hidden, 1, 1, size),
        dp = gate_steps(hidden, 2, 1, size), dn = delta_n.unbind();
  Tensor grad_h = gradients.h.clone();
  for (int64_t k = layer.num_steps() - 1; k >= 0; --k) {
    const int64_t t = layer.row(k);
    grad_h.add_(grad_output[t]);
    at::mul_out(dz[t], grad_h, dz_by_dh[t]);
    at::mul_out(dn[t], grad_h, dn_by_dh[t]);
    at::mul_out(dr[t], dn[t], dr_by_dn[t]);
    at::mul_out(dp[t], dn[t], rs[t]);
    grad_h.mul_(zs[t]).addmm_(all[t], layer.w_hh());
  }
  return {at::cat({gates(hidden, 0, 2, size), delta_n}, 2), hidden, {}, {grad_h}};
}

// Computes gradients for c' = f c + i g, h' = o tanh(c').
Deltas lstm_backward(const Layer& layer, const Results& results, const ResultGradients& gradients) {
  const int64_t size = layer.hidden_size();
  const Tensor& saved = results.reserve;
  const Tensor i = gates(saved, 0, 1, size), f = gates(saved, 1, 1, size),
               g = gates(saved, 2, 1, size), o = gates(saved, 3, 1, size),
               c = gates(saved, 4, 1, size);
  const Tensor squashed = c.tanh();
  const Tensor from_c = previous(layer, c, layer.c0());
  const Tensor di_by_dc = g * i * (1 - i), df_by_dc = from_c * f * (1 - f),
               dg_by_dc = i * (1 - g * g);
  const Steps di_df_dg_by_dc = at::stack({di_by_dc, df_by_dc, dg_by_dc}, 2).unbind(),
              do_by_dh = (squashed * o * (1 - o)).unbind(),
              dc_by_dh = (o * (1 - squashed * squashed)).unbind(), fs = f.unbind(),
              grad_output = gradients.output.unbind();
  const Tensor deltas =
      at::empty({layer.num_steps(), layer.batch_size(), 4, size}, saved.options());
  const Tensor flat = deltas.flatten(2);
  const Steps all = flat.unbind();
  Steps di_df_dg = deltas.narrow(2, 0, 3).unbind(), d_o = deltas.select(2, 3).unbind();
  const Tensor projected = layer.has_projection() ? at::empty_like(gradients.output) : Tensor();
  Tensor grad_h = gradients.h.clone();
  Tensor grad_c = gradients.c.clone();
  for (int64_t k = layer.num_steps() - 1; k >= 0; --k) {
    const int64_t t = layer.row(k);
    grad_h.add_(grad_output[t]);
    Tensor dh = grad_h;
    if (projected.defined()) {
      projected[t].copy_(grad_h);
      dh = grad_h.mm(layer.w_hr());
    }
    at::mul_out(d_o[t], dh, do_by_dh[t]);
    grad_c.addcmul_(dh, dc_by_dh[t]);
    at::mul_out(di_df_dg[t], grad_c.unsqueeze(1), di_df_dg_by_dc[t]);
    grad_c.mul_(fs[t]);
    at::mm_out(grad_h, all[t], layer.w_hh());
  }
  return {flat, flat, projected, {grad_h, grad_c}};
}

Deltas deltas_of(const Layer& layer, const Results& results, const ResultGradients& gradients) {
  switch (layer.mode) {
    case Mode::kLstm:
      return lstm_backward(layer, results, gradients);
    case Mode::kGru:
      return gru_backward(layer, results, gradients);
    case Mode::kRnnTanh:
    case Mode::kRnnRelu:
      return rnn_backward(layer, results.output, gradients);
  }
  TORCH_INTERNAL_ASSERT(false, "a mode was forgotten");
}

// Returns the gradient of w in y = x w^T, summed over steps and rows.
Tensor weight_gradient(const Tensor& delta, const Tensor& x) {
  return delta.flatten(0, 1).t().mm(x.flatten(0, 1));
}

}  // namespace

Mode mode_of(std::string_view name) {
  if (name == "lstm") return Mode::kLstm;
  if (name == "gru") return Mode::kGru;
  if (name == "rnn_tanh") return Mode::kRnnTanh;
  if (name == "rnn_relu") return Mode::kRnnRelu;
  TORCH_CHECK_VALUE(false, "mode is '", name,
                    "'; expected 'lstm', 'gru', 'rnn_tanh' or 'rnn_relu'.");
}

int64_t Layer::num_gates() const {
  switch (mode) {
    case Mode::kLstm:
      return 4;
    case Mode::kGru:
      return 3;
    case Mode::kRnnTanh:
    case Mode::kRnnRelu:
      return 1;
  }
  TORCH_INTERNAL_ASSERT(false, "a mode was forgotten");
}

int64_t Layer::num_saved() const {
  // The gates and one more value; backward of a plain RNN only needs the output.
  return num_gates() == 1 ? 0 : num_gates() + 1;
}

Results forward_by_steps(const Layer& layer, bool is_training) {
  const int64_t num_rows = is_training ? layer.num_steps() : 1;
  const auto options = layer.input.options();
  const Tensor bias = layer.has_biases() ? layer.b_ih() : Tensor();
  const Tensor x = at::linear(layer.input, layer.w_ih(), bias);
  const Tensor output =
      at::empty({layer.num_steps(), layer.batch_size(), layer.output_size()}, options);
  const Tensor saved =
      at::empty({num_rows, layer.batch_size(), layer.num_saved() * layer.hidden_size()}, options);
  Steps steps = output.unbind();
  Tensor c = at::empty({0}, options);
  switch (layer.mode) {
    case Mode::kLstm:
      lstm_forward(layer, x.unbind(), saved, steps);
      c = gates(saved, 4, 1, layer.hidden_size())[layer.row(layer.num_steps() - 1) % num_rows]
              .clone();
      break;
    case Mode::kGru:
      gru_forward(layer, x, saved, steps);
      break;
    case Mode::kRnnTanh:
    case Mode::kRnnRelu:
      rnn_forward(layer, x.unbind(), steps);
      break;
  }
  return {output, steps[layer.row(layer.num_steps() - 1)].clone(), c,
          is_training ? saved : at::empty({0}, options)};
}

Gradients backward_by_steps(const Layer& layer, const Results& results,
                            const ResultGradients& gradients, bool needs_input_gradient) {
  const Deltas deltas = deltas_of(layer, results, gradients);
  Gradients all;
  if (needs_input_gradient) all.input = deltas.input.matmul(layer.w_ih());
  all.state = deltas.state;
  all.weights = {weight_gradient(deltas.input, layer.input),
                 weight_gradient(deltas.hidden, previous(layer, results.output, layer.h0()))};
  if (layer.has_biases()) {
    all.weights.push_back(deltas.input.sum({0, 1}));
    all.weights.push_back(deltas.hidden.sum({0, 1}));
  }
  if (layer.has_projection()) {
    const int64_t size = layer.hidden_size();
    const Tensor c = gates(results.reserve, 4, 1, size);
    const Tensor unprojected = gates(results.reserve, 3, 1, size) * c.tanh();
    all.weights.push_back(weight_gradient(deltas.projected, unprojected));
  }
  return all;
}

}  // namespace poptorch_emu::rnn
