// Casts between float16 and float32 for PyTorch's CPU operators that accept only one type.
//
// All kernels here are registered at AutocastIPU, above autograd; a trace switches this key on.
// Casts are therefore recorded like other operations, and a gradient has the type of its weight.
// Operators that are not listed promote types by PyTorch's own rules.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/batch_norm.h>
#include <torch/library.h>

#include <optional>

namespace poptorch_emu {
namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

Tensor cast(const Tensor& tensor, ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}

std::optional<Tensor> cast(const std::optional<Tensor>& tensor, ScalarType dtype) {
  return tensor ? std::make_optional(cast(*tensor, dtype)) : std::nullopt;
}

// Calls `visit` for each floating-point tensor among the arguments, also in lists of tensors, but
// not for numbers that are wrapped in tensors.
template <typename Visit>
void for_each_float(Stack& stack, size_t num_arguments, const Visit& visit) {
  for (size_t i = stack.size() - num_arguments; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      Tensor tensor = stack[i].toTensor();
      const bool is_number = tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
      if (tensor.defined() && tensor.is_floating_point() && !is_number) {
        visit(tensor);
        stack[i] = std::move(tensor);
      }
    } else if (stack[i].isTensorList()) {
      c10::List<Tensor> list = stack[i].toTensorList().copy();
      for (size_t item = 0; item < list.size(); ++item) {
        Tensor tensor = list.get(item);
        if (tensor.is_floating_point()) visit(tensor);
        list.set(item, tensor);
      }
      stack[i] = std::move(list);
    }
  }
}

void call_below(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::AutocastIPU),
                     stack);
}

// Casts weights to the type of the first argument, which is the type of the result.
void cast_to_input(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const Tensor input = (*stack)[stack->size() - count].toTensor();
  if (input.is_floating_point()) {
    for_each_float(*stack, count,
                   [&](Tensor& tensor) { tensor = cast(tensor, input.scalar_type()); });
  }
  call_below(op, keys, stack);
}

// Casts all tensors to the widest type among them.
void promote(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::optional<ScalarType> widest;
  for_each_float(*stack, count, [&](Tensor& tensor) {
    widest = widest ? c10::promoteTypes(*widest, tensor.scalar_type()) : tensor.scalar_type();
  });
  if (widest) {
    for_each_float(*stack, count, [&](Tensor& tensor) { tensor = cast(tensor, *widest); });
  }
  call_below(op, keys, stack);
}

// Casts weight and bias to the input's type; running statistics keep their type. The CPU kernel
// accepts one type, or float16 inputs with float32 parameters.
Tensor batch_norm(const Tensor& input, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& bias, const std::optional<Tensor>& running_mean,
                  const std::optional<Tensor>& running_var, bool training, double momentum,
                  double eps, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::AutocastIPU);
  const ScalarType dtype = input.scalar_type();
  const bool has_statistics = running_mean && running_mean->defined();
  const ScalarType statistics = has_statistics ? running_mean->scalar_type() : dtype;
  const ScalarType computed = c10::promoteTypes(dtype, statistics);
  const auto mean = cast(running_mean, computed);
  const auto var = cast(running_var, computed);
  const Tensor result =
      at::batch_norm(input, cast(cast(weight, dtype), computed), cast(cast(bias, dtype), computed),
                     mean, var, training, momentum, eps, cudnn_enabled);
  if (training && has_statistics && computed != statistics) {
    running_mean->copy_(*mean);
    running_var->copy_(*var);
  }
  return result;
}

constexpr const char* kCastToInput[] = {
    "linear",
    "conv1d",
    "conv1d.padding",
    "conv2d",
    "conv2d.padding",
    "conv3d",
    "conv3d.padding",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "instance_norm",
    "layer_norm",
    "group_norm",
    "rms_norm",
    "prelu",
    "lstm.input",
    "gru.input",
    "rnn_tanh.input",
    "rnn_relu.input",
};

constexpr const char* kPromote[] = {
    "matmul",
    "mm",
    "bmm",
    "mv",
    "dot",
    "inner",
    "addmm",
    "addbmm",
    "baddbmm",
    "addmv",
    "addr",
    "outer",
    "einsum",
    "bilinear",
    "cdist",
    "lerp.Tensor",
    "addcmul",
    "addcdiv",
    "tensordot",
    "scaled_dot_product_attention",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "poisson_nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
};

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastIPU, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastIPU, m) {
  for (const char* name : kCastToInput) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_to_input>());
  }
  for (const char* name : kPromote) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&promote>());
  }
  m.impl("batch_norm", batch_norm);
}

}  // namespace poptorch_emu
