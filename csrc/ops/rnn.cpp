// Traces recurrent networks as one `rnn_layer` for each layer and direction.
//
// The kernels are registered at AutogradIPU, so that only the fake tensors of a trace reach them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <algorithm>

#include "common/errors.h"

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;
using at::TensorList;

// The options of torch.nn.RNNBase.
struct Network {
  const char* mode;
  int64_t num_layers;
  double dropout;
  bool is_training;
  bool is_bidirectional;
  bool is_batch_first;

  int64_t num_directions() const { return is_bidirectional ? 2 : 1; }
};

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Outputs call_layer(const Tensor& input, TensorList state, TensorList weights, std::string_view mode,
                   bool reverse, bool training) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("poptorch_emu::rnn_layer", "")
                             .typed<Outputs(const Tensor&, TensorList, TensorList, std::string_view,
                                            bool, bool, bool)>();
  return op.call(input, state, weights, mode, reverse, training, /*by_rows=*/false);
}

bool any_requires_grad(TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& tensor) { return tensor.requires_grad(); });
}

// Returns the output and the final states, stacked by layer and direction.
std::vector<Tensor> run(const Network& network, const Tensor& input, TensorList state,
                        TensorList params) {
  const int64_t num_runs = network.num_layers * network.num_directions();
  TORCH_CHECK_VALUE(!params.empty() && static_cast<int64_t>(params.size()) % num_runs == 0,
                    network.mode, " got ", params.size(), " parameters for ", num_runs,
                    " layers and directions; expected the same number for each.");
  for (const Tensor& initial : state) {
    TORCH_CHECK_VALUE(initial.dim() == 3 && initial.size(0) == num_runs, network.mode,
                      " got an initial state of shape ", initial.sizes(), "; expected (", num_runs,
                      ", batch, size).");
  }
  const size_t per_run = params.size() / num_runs;
  const bool keeps_reserve =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || any_requires_grad(state) || any_requires_grad(params));
  std::vector<Tensor> final_h, final_c;
  Tensor x = network.is_batch_first ? input.transpose(0, 1) : input;
  for (int64_t layer = 0; layer < network.num_layers; ++layer) {
    if (layer > 0 && network.dropout > 0) x = at::dropout(x, network.dropout, network.is_training);
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < network.num_directions(); ++direction) {
      const int64_t index = layer * network.num_directions() + direction;
      std::vector<Tensor> initial;
      for (const Tensor& tensor : state) initial.push_back(tensor.select(0, index));
      auto [output, h, c, reserve] =
          call_layer(x, initial, params.slice(index * per_run, per_run), network.mode,
                     /*reverse=*/direction == 1, keeps_reserve);
      outputs.push_back(output);
      final_h.push_back(h);
      final_c.push_back(c);
    }
    x = network.is_bidirectional ? at::cat(outputs, -1) : outputs[0];
  }
  std::vector<Tensor> results = {network.is_batch_first ? x.transpose(0, 1) : x,
                                 at::stack(final_h)};
  if (state.size() == 2) results.push_back(at::stack(final_c));
  return results;
}

std::tuple<Tensor, Tensor, Tensor> record_lstm(const Tensor& input, TensorList state,
                                               TensorList params, bool has_biases,
                                               int64_t num_layers, double dropout, bool train,
                                               bool bidirectional, bool batch_first) {
  TORCH_CHECK_VALUE(state.size() == 2, "lstm got ", state.size(), " initial states; expected 2.");
  const auto results =
      run({"lstm", num_layers, dropout, train, bidirectional, batch_first}, input, state, params);
  return {results[0], results[1], results[2]};
}

constexpr char kGru[] = "gru";
constexpr char kRnnTanh[] = "rnn_tanh";
constexpr char kRnnRelu[] = "rnn_relu";

template <const char* mode>
std::tuple<Tensor, Tensor> record(const Tensor& input, const Tensor& state, TensorList params,
                                  bool has_biases, int64_t num_layers, double dropout, bool train,
                                  bool bidirectional, bool batch_first) {
  const auto results =
      run({mode, num_layers, dropout, train, bidirectional, batch_first}, input, state, params);
  return {results[0], results[1]};
}

void refuse_packed(const c10::OperatorHandle& op, torch::jit::Stack*) {
  throw Error("Packed sequences are not supported (" + op.schema().name() +
              "): their shape depends on data, but a compiled graph has static shapes. Pad the "
              "sequences to one length, pass the padded tensor, and mask what is beyond each end.");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradIPU, m) {
  m.impl("lstm.input", record_lstm);
  m.impl("gru.input", record<kGru>);
  m.impl("rnn_tanh.input", record<kRnnTanh>);
  m.impl("rnn_relu.input", record<kRnnRelu>);
  for (const char* name : {"lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data",
                           "_pack_padded_sequence", "_pad_packed_sequence"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_packed>());
  }
}

}  // namespace poptorch_emu::rnn
