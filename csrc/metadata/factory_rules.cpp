// Our rules for the metadata of new tensors and copies; see also `rules.cpp`.

#include "metadata/rules.h"

#include <ATen/Operators.h>

#include <cmath>

namespace poptorch_emu::metadata {
namespace {

// Throws for other layouts and pinned memory. A rule is only called for results on the IPU.
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

Tensor new_empty_strided(const Tensor& self, IntArrayRef sizes, IntArrayRef strides,
                         OptionalType dtype, OptionalLayout layout, OptionalDevice device,
                         OptionalBool is_pinned) {
  return empty_strided(sizes, strides, dtype.value_or(self.scalar_type()), layout, device,
                       is_pinned);
}

// Rule for `torch.zeros` and `torch.ones`.
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

// Rule for `torch.rand` and `torch.randn`.
Tensor random(IntArrayRef sizes, OptionalType dtype, OptionalLayout layout, OptionalDevice device,
              OptionalBool is_pinned) {
  only_if(at::isFloatingType(or_default(dtype)));
  return filled(sizes, dtype, layout, device, is_pinned);
}

Tensor linspace(const Scalar& start, const Scalar& end, int64_t steps, OptionalType dtype,
                OptionalLayout layout, OptionalDevice device, OptionalBool is_pinned) {
  only_if(!start.isComplex() && !end.isComplex() && steps >= 0);
  return filled({steps}, dtype, layout, device, is_pinned);
}

Tensor eye_of_two(int64_t n, int64_t m, OptionalType dtype, OptionalLayout layout,
                  OptionalDevice device, OptionalBool is_pinned) {
  return filled({n, m}, dtype, layout, device, is_pinned);
}

Tensor eye(int64_t n, OptionalType dtype, OptionalLayout layout, OptionalDevice device,
           OptionalBool is_pinned) {
  return eye_of_two(n, n, dtype, layout, device, is_pinned);
}

// PyTorch returns int64 for integers. For other numbers it computes the size in double precision.
Tensor arange_step(const Scalar& start, const Scalar& end, const Scalar& step, OptionalType dtype,
                   OptionalLayout layout, OptionalDevice device, OptionalBool is_pinned) {
  bool is_integral = true;
  for (const Scalar* number : {&start, &end, &step}) {
    only_if(number->isIntegral(false) || number->isFloatingPoint());
    is_integral = is_integral && number->isIntegral(false);
  }
  const ScalarType type = dtype.value_or(is_integral ? at::kLong : or_default(dtype));
  // If the type is integral but a number is not, PyTorch rounds the numbers first.
  only_if(is_integral || at::isFloatingType(type));
  const double distance = end.toDouble() - start.toDouble();
  only_if(step.toDouble() != 0 && std::isfinite(distance));
  only_if(distance == 0 || (distance > 0) == (step.toDouble() > 0));
  only_if(std::abs(distance) < (int64_t{1} << 53));
  return filled({static_cast<int64_t>(std::ceil(distance / step.toDouble()))}, type, layout, device,
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

// Rule for `torch.zeros_like`, `torch.ones_like` and `torch.empty_like`.
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

Tensor new_full(const Tensor& self, IntArrayRef sizes, const Scalar&, OptionalType dtype,
                OptionalLayout layout, OptionalDevice device, OptionalBool is_pinned) {
  return new_filled(self, sizes, dtype, layout, device, is_pinned);
}

// Rule for `torch.rand_like` and `torch.randn_like`.
Tensor random_like(const Tensor& self, OptionalType dtype, OptionalLayout layout,
                   OptionalDevice device, OptionalBool is_pinned, OptionalFormat format) {
  only_if(at::isFloatingType(dtype.value_or(self.scalar_type())));
  return made_like(self, dtype, layout, device, is_pinned, format);
}

Tensor bernoulli(const Tensor& self, std::optional<at::Generator>) {
  only_if(self.is_floating_point());
  return dense(self.sizes(), self.scalar_type());
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

}  // namespace

void list_factory_rules(Rules& rules) {
  METADATA_RULE(arange, arange);
  METADATA_RULE(arange_start, arange_start);
  METADATA_RULE(arange_start_step, arange_step);
  METADATA_RULE(empty_memory_format, empty);
  METADATA_RULE(empty_strided, empty_strided);
  METADATA_RULE(zeros, filled);
  METADATA_RULE(ones, filled);
  METADATA_RULE(full, full);
  METADATA_RULE(scalar_tensor, scalar_tensor);
  METADATA_RULE(empty_like, made_like);
  METADATA_RULE(zeros_like, made_like);
  METADATA_RULE(ones_like, made_like);
  METADATA_RULE(full_like, full_like);
  METADATA_RULE(rand, random);
  METADATA_RULE(randn, random);
  METADATA_RULE(rand_like, random_like);
  METADATA_RULE(randn_like, random_like);
  METADATA_RULE(bernoulli, bernoulli);
  METADATA_RULE(eye, eye);
  METADATA_RULE(eye_m, eye_of_two);
  METADATA_RULE(linspace, linspace);
  METADATA_RULE(new_empty_strided, new_empty_strided);
  METADATA_RULE(new_full, new_full);
  METADATA_RULE(new_empty, new_filled);
  METADATA_RULE(new_zeros, new_filled);
  METADATA_RULE(new_ones, new_filled);
  METADATA_RULE(_to_copy, to_copy);
  METADATA_RULE(clone, clone);
  METADATA_RULE(copy_, copy_);
}

}  // namespace poptorch_emu::metadata
