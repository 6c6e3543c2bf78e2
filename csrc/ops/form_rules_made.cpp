// Rules of our own for the forms of tensors that are made from nothing, or copied, like those in
// `form_rules.cpp`.

#include "ops/form_rules.h"

#include <ATen/Operators.h>

#include <cstdlib>

namespace poptorch_emu::forms {
namespace {

// What is made is on the IPU, or the rule is not asked.
void check_strided(OptionalLayout layout, OptionalBool is_pinned) {
  only_if(layout.value_or(at::kStrided) == at::kStrided && !is_pinned.value_or(false));
}

ScalarType or_default(OptionalType dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(at::get_default_dtype()));
}

Tensor empty(IntArrayRef sizes, OptionalType dtype, OptionalLayout layout, OptionalDevice,
             OptionalBool is_pinned, OptionalFormat format) {
  check_strided(layout, is_pinned);
  only_if(format.value_or(MemoryFormat::Contiguous) == MemoryFormat::Contiguous);
  return dense(sizes, or_default(dtype));
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, OptionalType dtype,
                     OptionalLayout layout, OptionalDevice, OptionalBool is_pinned) {
  check_strided(layout, is_pinned);
  return strided(sizes, strides, or_default(dtype));
}

// `torch.zeros` and `torch.ones`.
Tensor filled(IntArrayRef sizes, OptionalType dtype, OptionalLayout layout, OptionalDevice device,
              OptionalBool is_pinned) {
  return empty(sizes, dtype, layout, device, is_pinned, std::nullopt);
}

Tensor full(IntArrayRef sizes, const Scalar& value, OptionalType dtype, OptionalLayout layout,
            OptionalDevice device, OptionalBool is_pinned) {
  only_if(!value.isComplex());
  if (!dtype && !value.isFloatingPoint()) dtype = value.type();
  return filled(sizes, dtype, layout, device, is_pinned);
}

// Of integers, of which PyTorch makes int64.
Tensor arange_step(const Scalar& start, const Scalar& end, const Scalar& step, OptionalType dtype,
                   OptionalLayout layout, OptionalDevice device, OptionalBool is_pinned) {
  // Sizes of others depend on how they are rounded.
  for (const Scalar* number : {&start, &end, &step}) only_if(number->isIntegral(false));
  only_if(step.toLong() != 0);
  const int64_t distance = end.toLong() - start.toLong();
  only_if(distance == 0 || (distance > 0) == (step.toLong() > 0));
  const int64_t size = std::abs(step.toLong());
  return filled({(std::abs(distance) + size - 1) / size}, dtype.value_or(at::kLong), layout, device,
                is_pinned);
}

Tensor arange_start(const Scalar& start, const Scalar& end, OptionalType dtype,
                    OptionalLayout layout, OptionalDevice device, OptionalBool is_pinned) {
  return arange_step(start, end, 1, dtype, layout, device, is_pinned);
}

Tensor arange(const Scalar& end, OptionalType dtype, OptionalLayout layout, OptionalDevice device,
              OptionalBool is_pinned) {
  return arange_step(0, end, 1, dtype, layout, device, is_pinned);
}

Tensor scalar_tensor(const Scalar& value, OptionalType dtype, OptionalLayout layout,
                     OptionalDevice device, OptionalBool is_pinned) {
  only_if(!value.isComplex());
  return filled({}, dtype, layout, device, is_pinned);
}

// `torch.zeros_like`, `torch.ones_like` and `torch.empty_like`.
Tensor made_like(const Tensor& self, OptionalType dtype, OptionalLayout layout, OptionalDevice,
                 OptionalBool is_pinned, OptionalFormat format) {
  check_strided(layout, is_pinned);
  return like(self, dtype.value_or(self.scalar_type()), format);
}

Tensor full_like(const Tensor& self, const Scalar& value, OptionalType dtype, OptionalLayout layout,
                 OptionalDevice device, OptionalBool is_pinned, OptionalFormat format) {
  return made_like(self, dtype, layout, device, is_pinned, format);
}

Tensor new_filled(const Tensor& self, IntArrayRef sizes, OptionalType dtype, OptionalLayout layout,
                  OptionalDevice device, OptionalBool is_pinned) {
  return filled(sizes, dtype.value_or(self.scalar_type()), layout, device, is_pinned);
}

Tensor to_copy(const Tensor& self, OptionalType dtype, OptionalLayout layout, OptionalDevice device,
               OptionalBool is_pinned, bool, OptionalFormat format) {
  return made_like(self, dtype, layout, device, is_pinned, format);
}

Tensor clone(const Tensor& self, OptionalFormat format) {
  return like(self, self.scalar_type(), format);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  only_if(at::is_expandable_to(source.sizes(), self.sizes()));
  return self;
}

#define OWN_RULE(overload, function) FORM_RULE(overload, TORCH_FN(function))

}  // namespace

void list_rules_of_made(Rules& rules) {
  OWN_RULE(arange, arange);
  OWN_RULE(arange_start, arange_start);
  OWN_RULE(arange_start_step, arange_step);
  OWN_RULE(empty_memory_format, empty);
  OWN_RULE(empty_strided, empty_strided);
  OWN_RULE(zeros, filled);
  OWN_RULE(ones, filled);
  OWN_RULE(full, full);
  OWN_RULE(scalar_tensor, scalar_tensor);
  OWN_RULE(empty_like, made_like);
  OWN_RULE(zeros_like, made_like);
  OWN_RULE(ones_like, made_like);
  OWN_RULE(full_like, full_like);
  OWN_RULE(new_empty, new_filled);
  OWN_RULE(new_zeros, new_filled);
  OWN_RULE(new_ones, new_filled);
  OWN_RULE(_to_copy, to_copy);
  OWN_RULE(clone, clone);
  OWN_RULE(copy_, copy_);
}

#undef OWN_RULE

}  // namespace poptorch_emu::forms
