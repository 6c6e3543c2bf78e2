// Derivative of `rnn_layer`, which is the single operation `rnn_layer_backward`.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;
using at::TensorList;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using ForwardSchema = Outputs(const Tensor&, TensorList, TensorList, std::string_view, bool, bool,
                              bool);
using BackwardSchema = std::vector<Tensor>(const std::optional<Tensor>&,
                                           const std::optional<Tensor>&,
                                           const std::optional<Tensor>&, const Tensor&, TensorList,
                                           TensorList, const Tensor&, const Tensor&, const Tensor&,
                                           const Tensor&, std::string_view, bool, bool, bool);

template <typename Schema>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

std::optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

struct RnnLayer : torch::autograd::Function<RnnLayer> {
  static variable_list forward(AutogradContext* context, const Tensor& input, TensorList state,
                               TensorList weights, const std::string& mode, bool reverse,
                               bool training, bool by_rows) {
    static const auto op = find<ForwardSchema>("poptorch_emu::rnn_layer");
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, h, c, reserve] = op.call(input, state, weights, mode, reverse, training, by_rows);
    variable_list saved = {input, output, h, c, reserve};
    saved.insert(saved.end(), state.begin(), state.end());
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["num_states"] = static_cast<int64_t>(state.size());
    context->saved_data["mode"] = mode;
    context->saved_data["reverse"] = reverse;
    context->saved_data["training"] = training;
    context->saved_data["by_rows"] = by_rows;
    const bool has_c = state.size() == 2;
    context->mark_non_differentiable(has_c ? variable_list{reserve} : variable_list{c, reserve});
    context->set_materialize_grads(false);
    return {output, h, c, reserve};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<BackwardSchema>("poptorch_emu::rnn_layer_backward");
    TORCH_CHECK(context->saved_data["training"].toBool(),
                "rnn_layer ran with training=False and kept nothing for backward.");
    const variable_list saved = context->get_saved_variables();
    const TensorList operands = TensorList(saved).slice(5);
    const size_t num_states = context->saved_data["num_states"].toInt();
    const bool needs_input = context->needs_input_grad(0);
    variable_list found =
        op.call(if_defined(gradients[0]), if_defined(gradients[1]), if_defined(gradients[2]),
                saved[0], operands.slice(0, num_states), operands.slice(num_states), saved[1],
                saved[2], saved[3], saved[4], context->saved_data["mode"].toStringRef(),
                context->saved_data["reverse"].toBool(), needs_input,
                context->saved_data["by_rows"].toBool());
    if (!needs_input) found.insert(found.begin(), Tensor());
    // The last four arguments have no gradients.
    found.insert(found.end(), 4, Tensor());
    return found;
  }
};

Outputs rnn_layer(const Tensor& input, TensorList state, TensorList weights, std::string_view mode,
                  bool reverse, bool training, bool by_rows) {
  const variable_list results =
      RnnLayer::apply(input, state, weights, std::string(mode), reverse, training, by_rows);
  return {results[0], results[1], results[2], results[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(poptorch_emu, Autograd, m) {
  m.impl("rnn_layer", rnn_layer);
  m.impl("rnn_layer_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace poptorch_emu::rnn
