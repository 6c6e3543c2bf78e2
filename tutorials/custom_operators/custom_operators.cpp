// Three operators for poptorch.custom_op, as an ordinary library of PyTorch operators.
//
// `poptorch.custom_op(..., name="Cube", domain="tutorial.ops", ...)` finds `tutorial_ops::Cube`. An
// operator needs a kernel for CPU, which the engine calls, and one for Meta, which gives the shapes
// of the results while a model is traced.

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

namespace {

// Calls `function` on each element of up to two tensors of one type.
template <typename Function>
at::Tensor for_each(const at::Tensor& first, const at::Tensor& second, const Function& function) {
  const at::Tensor a = first.contiguous();
  const at::Tensor b = second.contiguous();
  at::Tensor result = at::empty_like(a);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "tutorial_ops", [&] {
    const scalar_t* x = a.const_data_ptr<scalar_t>();
    const scalar_t* y = b.const_data_ptr<scalar_t>();
    scalar_t* out = result.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < a.numel(); ++i) out[i] = static_cast<scalar_t>(function(x[i], y[i]));
  });
  return result;
}

at::Tensor cube(const at::Tensor& x) {
  return for_each(x, x, [](auto value, auto) { return value * value * value; });
}

// The gradient of an operator has its name and "Grad". It takes the gradients of the outputs, then
// the inputs, and returns a gradient for each input.
at::Tensor cube_grad(const at::Tensor& gradient, const at::Tensor& x) {
  return for_each(gradient, x, [](auto g, auto value) { return 3 * g * value * value; });
}

// Attributes are arguments of the schema, given by name.
at::Tensor leaky_relu(const at::Tensor& x, double alpha) {
  return for_each(x, x, [=](auto value, auto) { return value > 0 ? value : alpha * value; });
}

at::Tensor leaky_relu_grad(const at::Tensor& gradient, const at::Tensor& x, double alpha) {
  return for_each(gradient, x, [=](auto g, auto value) { return value > 0 ? g : alpha * g; });
}

at::Tensor like(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor like_second(const at::Tensor&, const at::Tensor& x) { return at::empty_like(x); }
at::Tensor like_with_alpha(const at::Tensor& x, double) { return at::empty_like(x); }
at::Tensor like_second_with_alpha(const at::Tensor&, const at::Tensor& x, double) {
  return at::empty_like(x);
}

// An operator made of PyTorch's operators needs neither its own kernels nor its own gradient.
at::Tensor vector_scalar_multiply(const at::Tensor& vector, const at::Tensor& scalar) {
  return at::mul(vector, scalar);
}

}  // namespace

TORCH_LIBRARY(tutorial_ops, m) {
  m.def("Cube(Tensor x) -> Tensor");
  m.def("CubeGrad(Tensor gradient, Tensor x) -> Tensor");
  m.def("LeakyRelu(Tensor x, float alpha) -> Tensor");
  m.def("LeakyReluGrad(Tensor gradient, Tensor x, float alpha) -> Tensor");
  m.def("VectorScalarMultiply(Tensor vector, Tensor scalar) -> Tensor", vector_scalar_multiply);
}

TORCH_LIBRARY_IMPL(tutorial_ops, CPU, m) {
  m.impl("Cube", cube);
  m.impl("CubeGrad", cube_grad);
  m.impl("LeakyRelu", leaky_relu);
  m.impl("LeakyReluGrad", leaky_relu_grad);
}

TORCH_LIBRARY_IMPL(tutorial_ops, Meta, m) {
  m.impl("Cube", like);
  m.impl("CubeGrad", like_second);
  m.impl("LeakyRelu", like_with_alpha);
  m.impl("LeakyReluGrad", like_second_with_alpha);
}
