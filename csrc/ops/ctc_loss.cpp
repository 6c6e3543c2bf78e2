// Connectionist temporal classification with shapes that do not depend on the lengths.
//
// PyTorch's operator returns its table of probabilities, whose size is that of the longest target.
// Ours returns only the loss of each sequence and makes the table again for the gradient.

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace poptorch_emu {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Forward = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, bool);
using Backward = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        int64_t, bool);

// The negative logarithm of the likelihood of each sequence, [N]; `log_probs` is [T, N, C], and
// `targets` [N, S], padded.
Tensor forward(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
               const Tensor& target_lengths, int64_t blank, bool zero_infinity) {
  if (log_probs.is_meta()) return at::empty({log_probs.size(1)}, log_probs.options());
  return std::get<0>(at::_ctc_loss(log_probs.to(at::kFloat), targets, input_lengths, target_lengths,
                                   blank, zero_infinity))
      .to(log_probs.scalar_type());
}

Tensor backward(const Tensor& gradient, const Tensor& log_probs, const Tensor& targets,
                const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                bool zero_infinity) {
  if (log_probs.is_meta()) return at::empty_like(log_probs);
  const Tensor single = log_probs.to(at::kFloat);
  const auto [loss, log_alpha] =
      at::_ctc_loss(single, targets, input_lengths, target_lengths, blank, zero_infinity);
  return at::_ctc_loss_backward(gradient.to(at::kFloat), single, targets, input_lengths,
                                target_lengths, loss, log_alpha, blank, zero_infinity)
      .to(log_probs.scalar_type());
}

template <typename Schema>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

struct CtcLoss : torch::autograd::Function<CtcLoss> {
  static Tensor forward(AutogradContext* context, const Tensor& log_probs, const Tensor& targets,
                        const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                        bool zero_infinity) {
    static const auto op = find<Forward>("poptorch_emu::ctc_loss");
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({log_probs, targets, input_lengths, target_lengths});
    context->saved_data["blank"] = blank;
    context->saved_data["zero_infinity"] = zero_infinity;
    return op.call(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<Backward>("poptorch_emu::ctc_loss_backward");
    const variable_list saved = context->get_saved_variables();
    const Tensor gradient = op.call(gradients[0], saved[0], saved[1], saved[2], saved[3],
                                    context->saved_data["blank"].toInt(),
                                    context->saved_data["zero_infinity"].toBool());
    return {gradient, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor record_ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                       const Tensor& target_lengths, int64_t blank, int64_t reduction,
                       bool zero_infinity) {
  const Tensor loss =
      CtcLoss::apply(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  if (reduction == at::Reduction::Sum) return loss.sum();
  if (reduction == at::Reduction::None) return loss;
  return (loss / target_lengths.clamp_min(1).to(loss.scalar_type())).mean();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  const std::string arguments =
      "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
      "bool zero_infinity) -> Tensor";
  m.def(("ctc_loss(" + arguments).c_str());
  m.def(("ctc_loss_backward(Tensor gradient, " + arguments).c_str());
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("ctc_loss", forward);
  m.impl("ctc_loss_backward", backward);
}
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) {
  m.impl("ctc_loss", forward);
  m.impl("ctc_loss_backward", backward);
}
TORCH_LIBRARY_IMPL(poptorch_emu, Autograd, m) {
  m.impl("ctc_loss_backward", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(aten, AutogradIPU, m) { m.impl("ctc_loss.Tensor", record_ctc_loss); }

}  // namespace poptorch_emu
