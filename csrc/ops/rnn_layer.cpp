// The operators `rnn_layer` and `rnn_layer_backward`: one layer in one direction as one operation
// of a graph, with its gradient as another.
//
// An LSTM trains by blocks of rows if the caller says so. Otherwise it runs in oneDNN, as in eager
// PyTorch, and oneDNN's workspace is the reserve. All other layers run by steps, and half precision
// computes in float32.

#include "ops/rnn_layer.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include "common/sharing.h"
#include "ops/lstm_rows.h"

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;
using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// PyTorch's number for an LSTM among its recurrent modes.
constexpr int64_t kMkldnnLstm = 2;

bool is_half(const Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool runs_in_mkldnn(const Layer& layer, bool is_training) {
  return layer.mode == Mode::kLstm && !layer.has_projection() && layer.input.numel() > 0 &&
         !(is_training && layer.is_by_rows) &&
         (layer.input.scalar_type() == at::kFloat || is_half(layer.input)) &&
         at::globalContext().userEnabledMkldnn();
}

Layer make_layer(std::string_view mode, bool reverse, const Tensor& input, TensorList state,
                 TensorList weights, bool by_rows) {
  Layer layer{mode_of(mode), reverse, input, state.vec(), weights.vec(), by_rows};
  const bool is_lstm = layer.mode == Mode::kLstm;
  TORCH_CHECK_VALUE(state.size() == (is_lstm ? 2 : 1), mode, " got ", state.size(),
                    " initial states; expected ", is_lstm ? "[h0, c0]." : "[h0].");
  TORCH_CHECK_VALUE(
      weights.size() == 2 || weights.size() == 4 || (layer.has_projection() && is_lstm), mode,
      " got ", weights.size(), " weights; expected w_ih, w_hh, perhaps b_ih and b_hh, and for an ",
      "LSTM with projection w_hr.");
  TORCH_CHECK_VALUE(input.dim() == 3 && input.size(2) == layer.w_ih().size(1), mode,
                    " got an input of shape ", input.sizes(), "; expected (steps, batch, ",
                    layer.w_ih().size(1), ").");
  TORCH_CHECK_VALUE(input.size(0) > 0, mode, " got no steps; expected at least one.");
  const std::array<int64_t, 2> state_size = {layer.batch_size(), layer.output_size()};
  TORCH_CHECK_VALUE(layer.h0().sizes() == at::IntArrayRef(state_size), mode,
                    " got an initial state of shape ", layer.h0().sizes(), "; expected ",
                    at::IntArrayRef(state_size), ".");
  if (by_rows) check_by_rows(layer);
  return layer;
}

std::vector<Tensor> in_type(std::vector<Tensor> tensors, at::ScalarType dtype) {
  for (Tensor& tensor : tensors) tensor = tensor.to(dtype);
  return tensors;
}

Layer in_float(const Layer& layer) {
  return {layer.mode,
          layer.is_reverse,
          layer.input.to(at::kFloat),
          in_type(layer.state, at::kFloat),
          in_type(layer.weights, at::kFloat),
          layer.is_by_rows};
}

// Returns a bias or a placeholder, because oneDNN always expects bias arguments.
Tensor bias_or_zeros(const Layer& layer, size_t index) {
  return layer.has_biases() ? layer.weights[index] : at::zeros_like(layer.w_ih());
}

Results forward_in_mkldnn(const Layer& layer, bool is_training) {
  // The kernel creates its workspace if gradients are enabled, whatever `train` says.
  const c10::AutoGradMode makes_workspace(is_training);
  auto [output, h, c, reserve] = at::mkldnn_rnn_layer(
      layer.input, layer.w_ih(), layer.w_hh(), bias_or_zeros(layer, 2), bias_or_zeros(layer, 3),
      layer.h0().contiguous(), layer.c0().contiguous(), layer.is_reverse, /*batch_sizes=*/{},
      kMkldnnLstm, layer.hidden_size(), /*num_layers=*/1, layer.has_biases(),
      /*bidirectional=*/false, /*batch_first=*/false, is_training);
  const auto bytes = layer.input.options().dtype(at::kByte);
  return {output, h, c, is_training ? reserve : at::empty({0}, bytes)};
}

Gradients backward_in_mkldnn(const Layer& layer, const Results& results,
                             const ResultGradients& gradients) {
  auto [input, w_ih, w_hh, b_ih, b_hh, h0, c0] = at::mkldnn_rnn_layer_backward(
      layer.input, layer.w_ih(), layer.w_hh(), bias_or_zeros(layer, 2), bias_or_zeros(layer, 3),
      layer.h0().contiguous(), layer.c0().contiguous(), results.output, results.h, results.c,
      gradients.output, gradients.h, gradients.c, layer.is_reverse, kMkldnnLstm,
      layer.hidden_size(), /*num_layers=*/1, layer.has_biases(), /*train=*/true,
      /*bidirectional=*/false, /*batch_sizes=*/{}, /*batch_first=*/false, results.reserve);
  Gradients all{input, {h0, c0}, {w_ih, w_hh}};
  if (layer.has_biases()) all.weights.insert(all.weights.end(), {b_ih, b_hh});
  return all;
}

Results forward(const Layer& layer, bool is_training) {
  if (is_half(layer.input)) {
    const auto dtype = layer.input.scalar_type();
    const Results wide = forward(in_float(layer), is_training);
    return {wide.output.to(dtype), wide.h.to(dtype), wide.c.to(dtype), wide.reserve};
  }
  if (is_training && layer.is_by_rows) return forward_by_rows(layer);
  return runs_in_mkldnn(layer, is_training) ? forward_in_mkldnn(layer, is_training)
                                            : forward_by_steps(layer, is_training);
}

Gradients backward(const Layer& layer, const Results& results, const ResultGradients& gradients,
                   bool needs_input_gradient) {
  if (is_half(layer.input)) {
    const auto wide = [](const Tensor& tensor) { return tensor.to(at::kFloat); };
    const auto dtype = layer.input.scalar_type();
    const Gradients all = backward(
        in_float(layer), {wide(results.output), wide(results.h), wide(results.c), results.reserve},
        {wide(gradients.output), wide(gradients.h), wide(gradients.c)}, needs_input_gradient);
    return {needs_input_gradient ? all.input.to(dtype) : Tensor(), in_type(all.state, dtype),
            in_type(all.weights, dtype)};
  }
  // The type of the reserve tells which forward kernel ran; oneDNN may be switched off since.
  if (results.reserve.scalar_type() == at::kByte) {
    return backward_in_mkldnn(layer, results, gradients);
  }
  return layer.is_by_rows ? backward_by_rows(layer, results, gradients, needs_input_gradient)
                          : backward_by_steps(layer, results, gradients, needs_input_gradient);
}

// Returns contiguous input, copied on one thread unless work is shared, with the same bits.
Tensor in_rows(const Tensor& tensor) {
  const OneThread alone(!shares_work());
  return tensor.contiguous();
}

Outputs rnn_layer_cpu(const Tensor& input, TensorList state, TensorList weights,
                      std::string_view mode, bool reverse, bool training, bool by_rows) {
  const Results results =
      forward(make_layer(mode, reverse, in_rows(input), state, weights, by_rows), training);
  return {results.output, results.h, results.c, results.reserve};
}

Outputs rnn_layer_meta(const Tensor& input, TensorList state, TensorList weights,
                       std::string_view mode, bool reverse, bool training, bool by_rows) {
  const Layer layer = make_layer(mode, reverse, input, state, weights, by_rows);
  const auto options = input.options();
  const Tensor c = layer.mode == Mode::kLstm
                       ? at::empty_like(layer.c0(), at::MemoryFormat::Contiguous)
                       : at::empty({0}, options);
  const bool is_bytes = runs_in_mkldnn(layer, training);
  const auto reserve_type = is_bytes         ? at::kByte
                            : is_half(input) ? at::kFloat
                                             : input.scalar_type();
  // Minimum size of the reserve: gates and cells. Only oneDNN knows the size of its workspace.
  std::vector<int64_t> reserve_size = {layer.num_steps(), layer.batch_size(),
                                       layer.num_saved() * layer.hidden_size()};
  if (is_bytes) reserve_size = {c10::multiply_integers(reserve_size) * int64_t{sizeof(float)}};
  const Tensor reserve = at::empty(training ? at::IntArrayRef(reserve_size) : at::IntArrayRef{0},
                                   options.dtype(reserve_type));
  return {at::empty({layer.num_steps(), layer.batch_size(), layer.output_size()}, options),
          at::empty({layer.batch_size(), layer.output_size()}, options), c, reserve};
}

// Returns all gradients in the order of the arguments, first the input's if requested.
std::vector<Tensor> in_order(Gradients gradients, bool needs_input_gradient) {
  std::vector<Tensor> all;
  if (needs_input_gradient) all.push_back(gradients.input);
  all.insert(all.end(), gradients.state.begin(), gradients.state.end());
  all.insert(all.end(), gradients.weights.begin(), gradients.weights.end());
  return all;
}

std::vector<Tensor> rnn_layer_backward_cpu(const OptionalTensor& grad_output,
                                           const OptionalTensor& grad_h,
                                           const OptionalTensor& grad_c, const Tensor& input,
                                           TensorList state, TensorList weights,
                                           const Tensor& output, const Tensor& h, const Tensor& c,
                                           const Tensor& reserve, std::string_view mode,
                                           bool reverse, bool needs_input_grad, bool by_rows) {
  const auto or_zeros = [](const OptionalTensor& gradient, const Tensor& result) {
    return gradient ? in_rows(*gradient) : at::zeros_like(result);
  };
  const Layer layer = make_layer(mode, reverse, in_rows(input), state, weights, by_rows);
  const bool is_by_rows = reserve.scalar_type() == input.scalar_type() && by_rows;
  const ResultGradients gradients{
      !grad_output && is_by_rows ? Tensor() : or_zeros(grad_output, output), or_zeros(grad_h, h),
      or_zeros(grad_c, c)};
  return in_order(backward(layer, {output, h, c, reserve}, gradients, needs_input_grad),
                  needs_input_grad);
}

std::vector<Tensor> rnn_layer_backward_meta(const OptionalTensor&, const OptionalTensor&,
                                            const OptionalTensor&, const Tensor& input,
                                            TensorList state, TensorList weights, const Tensor&,
                                            const Tensor&, const Tensor&, const Tensor&,
                                            std::string_view, bool, bool needs_input_grad, bool) {
  const auto alike = [](const Tensor& tensor) {
    return at::empty_like(tensor, at::MemoryFormat::Contiguous);
  };
  Gradients gradients{alike(input), state.vec(), weights.vec()};
  for (Tensor& tensor : gradients.state) tensor = alike(tensor);
  for (Tensor& tensor : gradients.weights) tensor = alike(tensor);
  return in_order(gradients, needs_input_grad);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "rnn_layer(Tensor input, Tensor[] state, Tensor[] weights, str mode, bool reverse, "
      "bool training, bool by_rows=False) -> (Tensor output, Tensor h, Tensor c, Tensor reserve)");
  m.def(
      "rnn_layer_backward(Tensor? grad_output, Tensor? grad_h, Tensor? grad_c, Tensor input, "
      "Tensor[] state, Tensor[] weights, Tensor output, Tensor h, Tensor c, Tensor reserve, "
      "str mode, bool reverse, bool needs_input_grad, bool by_rows=False) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("rnn_layer", rnn_layer_cpu);
  m.impl("rnn_layer_backward", rnn_layer_backward_cpu);
}

TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) {
  m.impl("rnn_layer", rnn_layer_meta);
  m.impl("rnn_layer_backward", rnn_layer_backward_meta);
}

}  // namespace poptorch_emu::rnn
