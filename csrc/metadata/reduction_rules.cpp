// Our rules for the metadata of sums, products and other reductions; see also `rules.cpp`.

#include "metadata/rules.h"

#include <ATen/Operators.h>

#include <tuple>

namespace poptorch_emu::metadata {
namespace {

using Two = std::tuple<Tensor, Tensor>;
using OptionalScalar = std::optional<Scalar>;

// Rules for whole tensors.

// Rule for `torch.sum` and `torch.prod`.
Tensor sum(const Tensor& self, OptionalType dtype) {
  const bool is_integer = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return dense({}, dtype.value_or(is_integer ? at::kLong : self.scalar_type()));
}

Tensor mean(const Tensor& self, OptionalType dtype) {
  const ScalarType type = dtype.value_or(self.scalar_type());
  only_if(at::isFloatingType(type));
  return dense({}, type);
}

// Rule for the maximum, the minimum and the median.
Tensor one_of(const Tensor& self) {
  only_if(self.numel() > 0);
  return dense({}, self.scalar_type());
}

// Rules for reductions along dimensions.

// Rule for standard deviation and variance, whose metadata is that of a mean.
Tensor deviation(const Tensor& self, at::OptionalIntArrayRef dim, const OptionalScalar&,
                 bool keeps_dim) {
  only_if(self.is_floating_point());
  return at::meta::mean(self, dim, keeps_dim, std::nullopt);
}

Two deviation_and_mean(const Tensor& self, at::OptionalIntArrayRef dim, const OptionalScalar& by,
                       bool keeps_dim) {
  return {deviation(self, dim, by, keeps_dim), deviation(self, dim, by, keeps_dim)};
}

Tensor logsumexp(const Tensor& self, IntArrayRef dim, bool keeps_dim) {
  only_if(self.numel() > 0);
  return deviation(self, dim, std::nullopt, keeps_dim);
}

Tensor logcumsumexp(const Tensor& self, int64_t dim) {
  only_if(self.is_floating_point());
  return at::meta::cumsum(self, dim, std::nullopt);
}

Two middle(const Tensor& self, int64_t dim, bool keeps_dim) {
  only_if(self.is_contiguous());
  return at::meta::max(self, dim, keeps_dim);
}

Two kthvalue(const Tensor& self, int64_t k, int64_t dim, bool keeps_dim) {
  only_if(self.dim() > 0 && self.size(dim) >= k && k > 0);
  return middle(self, dim, keeps_dim);
}

Two sort(const Tensor& self, int64_t dim, bool is_descending) {
  return at::meta::sort(self, /*stable=*/false, dim, is_descending);
}

// Rules for products.

Tensor mv(const Tensor& self, const Tensor& vector) {
  only_if(self.dim() == 2 && vector.dim() == 1 && self.size(1) == vector.size(0));
  only_if(self.scalar_type() == vector.scalar_type());
  return dense({self.size(0)}, self.scalar_type());
}

Tensor dot(const Tensor& self, const Tensor& other) {
  only_if(self.dim() == 1 && other.dim() == 1 && self.size(0) == other.size(0));
  only_if(self.scalar_type() == other.scalar_type());
  return dense({}, self.scalar_type());
}

}  // namespace

void list_reduction_rules(Rules& rules) {
  METADATA_RULE(sum, sum);
  METADATA_RULE(prod, sum);
  METADATA_RULE(mean, mean);
  METADATA_RULE(max, one_of);
  METADATA_RULE(min, one_of);
  METADATA_RULE(median, one_of);
  METADATA_RULE(std_correction, deviation);
  METADATA_RULE(var_correction, deviation);
  METADATA_RULE(std_mean_correction, deviation_and_mean);
  METADATA_RULE(var_mean_correction, deviation_and_mean);
  METADATA_RULE(logsumexp, logsumexp);
  METADATA_RULE(logcumsumexp, logcumsumexp);
  METADATA_RULE(median_dim, middle);
  METADATA_RULE(kthvalue, kthvalue);
  METADATA_RULE(sort, sort);
  METADATA_RULE(mv, mv);
  METADATA_RULE(dot, dot);
  METADATA_RULE(vdot, dot);
}

}  // namespace poptorch_emu::metadata
