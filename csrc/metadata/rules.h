// Common declarations of the rules for the metadata of results.
#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/MetaFunctions.h>
#include <ATen/OpMathType.h>

#include <torch/library.h>

#include <map>
#include <optional>
#include <string>

namespace poptorch_emu::metadata {

// List of rules by operation name: functions that add the rule for one overload to a library.
using Rules = std::multimap<std::string, void (*)(torch::Library&)>;
const Rules& all_rules();

// Adds the rules for an operation (for example `relu`) to the library `poptorch_emu_metadata`, if
// they exist and are missing there. All 230 at once would need 2 MiB of memory.
void define_rules(const std::string& name);

// Functions that each add one group of rules to the list.
void list_gradient_rules(Rules& rules);
void list_loss_rules(Rules& rules);
void list_indexing_rules(Rules& rules);
void list_reduction_rules(Rules& rules);
void list_factory_rules(Rules& rules);
void list_structured_rules(Rules& rules);

// Lists a function as the rule for one overload, with the overload's name in `at::_ops`.
#define METADATA_RULE(overload, function)                            \
  rules.emplace(at::_ops::overload::name, [](torch::Library& made) { \
    made.def(at::_ops::overload::schema_str, TORCH_FN(function));    \
  })

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

// Throws `NotImplementedError` for cases that a rule does not cover, which PyTorch then handles.
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

// Returns a tensor with the dimension order of `tensor`, as `torch.empty_like` does.
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

// Returns the type of accumulation: float32 for float16 and bfloat16 numbers.
inline ScalarType type_of_sums(const Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

// Returns whether elements of the tensor share memory, as in an expanded tensor; PyTorch does not
// write to such a tensor.
inline bool overlaps(const Tensor& tensor) {
  return at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
}

// Returns whether the tensor is a contiguous, non-empty floating-point tensor.
inline bool is_plain(const Tensor& tensor) {
  return tensor.is_floating_point() && tensor.is_contiguous() && tensor.numel() > 0;
}

inline bool is_affine_of(const OptionalTensor& weight, IntArrayRef shape, ScalarType dtype) {
  return !is_given(weight) || (weight->sizes() == shape && weight->scalar_type() == dtype);
}

}  // namespace poptorch_emu::metadata
