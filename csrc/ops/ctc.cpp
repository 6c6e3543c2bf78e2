// Connectionist temporal classification as operators whose shapes do not depend on data.
//
// PyTorch's `_ctc_loss` also returns its table of forward probabilities, whose size depends on the
// target lengths. Our operator does not return the table, and computes it again in backward.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace poptorch_emu::ctc {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using ForwardSchema = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t,
                             bool);
using BackwardSchema = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, int64_t, bool);

template <typename Schema>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

// Widens float16 tensors, because PyTorch has no float16 kernel.
Tensor widened(const Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

Tensor loss_cpu(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, int64_t blank, bool zero_infinity) {
  return std::get<0>(at::_ctc_loss(widened(log_probs), targets, input_lengths.to(at::kLong),
                                   target_lengths.to(at::kLong), blank, zero_infinity))
      .to(log_probs.scalar_type());
}

Tensor loss_meta(const Tensor& log_probs, const Tensor&, const Tensor&, const Tensor&, int64_t,
                 bool) {
  if (log_probs.dim() == 2) return at::empty({}, log_probs.options());
  return at::empty({log_probs.size(1)}, log_probs.options());
}

Tensor backward_cpu(const Tensor& gradient, const Tensor& log_probs, const Tensor& targets,
                    const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                    bool zero_infinity) {
  const Tensor inputs = input_lengths.to(at::kLong);
  const Tensor outputs = target_lengths.to(at::kLong);
  const Tensor wide = widened(log_probs);
  const auto [loss, table] = at::_ctc_loss(wide, targets, inputs, outputs, blank, zero_infinity);
  return at::_ctc_loss_backward(widened(gradient), wide, targets, inputs, outputs, loss, table,
                                blank, zero_infinity)
      .to(log_probs.scalar_type());
}

Tensor backward_meta(const Tensor&, const Tensor& log_probs, const Tensor&, const Tensor&,
                     const Tensor&, int64_t, bool) {
  return at::empty_like(log_probs, at::MemoryFormat::Contiguous);
}

struct CtcLoss : torch::autograd::Function<CtcLoss> {
  static Tensor forward(AutogradContext* context, const Tensor& log_probs, const Tensor& targets,
                        const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                        bool zero_infinity) {
    static const auto op = find<ForwardSchema>("poptorch_emu::ctc_loss");
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({log_probs, targets, input_lengths, target_lengths});
    context->saved_data["blank"] = blank;
    context->saved_data["zero_infinity"] = zero_infinity;
    return op.call(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<BackwardSchema>("poptorch_emu::ctc_loss_backward");
    const variable_list saved = context->get_saved_variables();
    const Tensor found = op.call(gradients[0], saved[0], saved[1], saved[2], saved[3],
                                 context->saved_data["blank"].toInt(),
                                 context->saved_data["zero_infinity"].toBool());
    return {found, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor differentiable(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                      const Tensor& target_lengths, int64_t blank, bool zero_infinity) {
  return CtcLoss::apply(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
}

// Records PyTorch's `_ctc_loss`, whose second result is used by PyTorch's own derivative only.
std::tuple<Tensor, Tensor> record(const Tensor& log_probs, const Tensor& targets,
                                  const Tensor& input_lengths, const Tensor& target_lengths,
                                  int64_t blank, bool zero_infinity) {
  static const auto op = find<ForwardSchema>("poptorch_emu::ctc_loss");
  const Tensor loss =
      op.call(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  return {loss, loss};
}

std::tuple<Tensor, Tensor> record_lists(const Tensor& log_probs, const Tensor& targets,
                                        at::IntArrayRef input_lengths,
                                        at::IntArrayRef target_lengths, int64_t blank,
                                        bool zero_infinity) {
  const auto constant = [&](at::IntArrayRef lengths) {
    return at::tensor(lengths, at::kLong).to(log_probs.device());
  };
  return record(log_probs, targets, constant(input_lengths), constant(target_lengths), blank,
                zero_infinity);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
      "int blank, bool zero_infinity) -> Tensor");
  m.def(
      "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, "
      "Tensor target_lengths, int blank, bool zero_infinity) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("ctc_loss", loss_cpu);
  m.impl("ctc_loss_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) {
  m.impl("ctc_loss", loss_meta);
  m.impl("ctc_loss_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(poptorch_emu, Autograd, m) {
  m.impl("ctc_loss", differentiable);
  m.impl("ctc_loss_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(aten, AutogradIPU, m) {
  m.impl("_ctc_loss", record_lists);
  m.impl("_ctc_loss.Tensor", record);
}

}  // namespace poptorch_emu::ctc
