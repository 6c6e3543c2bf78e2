// What the rules for the forms of results have in common.
#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/OpMathType.h>

#include <torch/library.h>

#include <optional>

namespace poptorch_emu::forms {

// Makes the library `poptorch_emu_forms`, if it is not there; as late as this, since its 230
// operations take 6 ms of an import.
void define_rules();

// Parts of the library.
void define_gradient_rules(torch::Library& library);
void define_rules_of_made(torch::Library& library);
void define_structured_rules(torch::Library& library);

using at::IntArrayRef;
using at::MemoryFormat;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<ScalarType>;
using OptionalFormat = std::optional<MemoryFormat>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<at::Device>;
using OptionalBool = std::optional<bool>;

// Leaves all other cases to PyTorch.
inline void only_if(bool is_known) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_known, "there is no rule for these arguments");
}

inline at::TensorOptions on_meta(ScalarType dtype) {
  return at::TensorOptions(at::kMeta).dtype(dtype);
}

inline Tensor dense(IntArrayRef sizes, ScalarType dtype) {
  return at::meta::empty(sizes, on_meta(dtype));
}

inline Tensor strided(IntArrayRef sizes, IntArrayRef strides, ScalarType dtype) {
  return at::meta::empty_strided(sizes, strides, on_meta(dtype));
}

// Has the order of dimensions of `tensor`, as `torch.empty_like` has.
inline Tensor like(const Tensor& tensor, ScalarType dtype, OptionalFormat format = std::nullopt) {
  if (format.value_or(MemoryFormat::Preserve) != MemoryFormat::Preserve) {
    return at::meta::empty(tensor.sizes(), on_meta(dtype), format);
  }
  if (tensor.is_non_overlapping_and_dense()) {
    return strided(tensor.sizes(), tensor.strides(), dtype);
  }
  return strided(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()), dtype);
}

inline bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// Sums of float16 and bfloat16 are kept as float32.
inline ScalarType type_of_sums(const Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

// A floating-point tensor with elements, in the plain order of dimensions.
inline bool is_plain(const Tensor& tensor) {
  return tensor.is_floating_point() && tensor.is_contiguous() && tensor.numel() > 0;
}

inline bool is_affine_of(const OptionalTensor& weight, IntArrayRef shape, ScalarType dtype) {
  return !is_given(weight) || (weight->sizes() == shape && weight->scalar_type() == dtype);
}

}  // namespace poptorch_emu::forms
