// Our rules for the metadata of partial writes, repetition and reordering; see also `rules.cpp`.

#include "metadata/rules.h"

#include <ATen/Operators.h>

#include <algorithm>
#include <vector>

namespace poptorch_emu::metadata {
namespace {

using Indices = c10::List<std::optional<Tensor>>;

// Returns the metadata of `torch.empty_like`, for contiguous tensors only.
Tensor as_plain(const Tensor& self) {
  only_if(self.is_contiguous());
  return dense(self.sizes(), self.scalar_type());
}

// Rules for whole tensors.

Tensor filled_with(const Tensor& self, const Scalar& value) {
  only_if(at::canCast(value.type(), self.scalar_type()));
  return like(self, self.scalar_type());
}

Tensor& fill_with(Tensor& self, const Scalar& value) {
  only_if(at::canCast(value.type(), self.scalar_type()));
  return self;
}

Tensor& masked_fill_with(Tensor& self, const Tensor& mask, const Scalar& value) {
  only_if(mask.scalar_type() == at::kBool && at::is_expandable_to(mask.sizes(), self.sizes()));
  return fill_with(self, value);
}

// The result has the values of `source` and the type of `self`.
Tensor copy(const Tensor& self, const Tensor& source, bool) {
  only_if(at::is_expandable_to(source.sizes(), self.sizes()) && !overlaps(self));
  return strided(self.sizes(), self.strides(), self.scalar_type());
}

// Rules for writes to parts at given positions.

Tensor select_scatter(const Tensor& self, const Tensor& source, int64_t dim, int64_t index) {
  only_if(self.scalar_type() == source.scalar_type());
  only_if(self.select(dim, index).sizes() == source.sizes());
  return as_plain(self);
}

Tensor slice_scatter(const Tensor& self, const Tensor& source, int64_t dim,
                     std::optional<int64_t> start, std::optional<int64_t> end, int64_t step) {
  only_if(self.scalar_type() == source.scalar_type());
  only_if(self.slice(dim, start, end, step).sizes() == source.sizes());
  return as_plain(self);
}

Tensor diagonal_backward(const Tensor& gradient, IntArrayRef sizes, int64_t offset, int64_t dim1,
                         int64_t dim2) {
  const Tensor made = dense(sizes, gradient.scalar_type());
  only_if(made.diagonal(offset, dim1, dim2).sizes() == gradient.sizes());
  return made;
}

// Rules for parts that indices select.

// Rule for indexing by integers. A mask is rejected, because the result's size depends on values.
Tensor chosen(const Tensor& self, const Indices& indices) {
  for (const OptionalTensor& each : indices) {
    only_if(!is_given(each) || at::isIntegralType(each->scalar_type(), /*includeBool=*/false));
  }
  return at::meta::index(self, indices);
}

Tensor with_put(const Tensor& self, const Indices& indices, const Tensor& values, bool) {
  only_if(self.scalar_type() == values.scalar_type());
  // A mask accepts a single value only, because one value fits any number of elements.
  const bool is_masked = indices.size() == 1 && indices.get(0).has_value() &&
                         indices.get(0)->scalar_type() == at::kBool;
  if (is_masked) {
    const IntArrayRef mask = indices.get(0)->sizes();
    only_if(values.dim() == 0 &&
            self.sizes().slice(0, std::min(mask.size(), self.sizes().size())) == mask);
  } else {
    only_if(at::is_expandable_to(values.sizes(), chosen(self, indices).sizes()));
  }
  return as_plain(self);
}

Tensor& put_(Tensor& self, const Indices& indices, const Tensor& values, bool adds) {
  with_put(self, indices, values, adds);
  return self;
}

Tensor index_fill(const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  only_if(self.dim() > 0 && dim >= -self.dim() && dim < self.dim());
  only_if(index.dim() == 1 && index.scalar_type() == at::kLong);
  only_if(at::canCast(value.type(), self.scalar_type()));
  return as_plain(self);
}

// Rules for repetition and other orders of elements.

Tensor flip(const Tensor& self, IntArrayRef dims) {
  std::vector<int64_t> places;
  for (const int64_t dim : dims) places.push_back(at::maybe_wrap_dim(dim, self.dim()));
  std::sort(places.begin(), places.end());
  only_if(std::adjacent_find(places.begin(), places.end()) == places.end());
  return like(self, self.scalar_type());
}

Tensor roll(const Tensor& self, IntArrayRef shifts, IntArrayRef dims) {
  only_if(self.numel() > 0 && !shifts.empty());
  only_if(self.suggest_memory_format() == MemoryFormat::Contiguous);
  only_if(shifts.size() == dims.size() || (dims.empty() && shifts.size() == 1));
  for (const int64_t dim : dims) at::maybe_wrap_dim(dim, self.dim());
  return dense(self.sizes(), self.scalar_type());
}

Tensor repeat(const Tensor& self, IntArrayRef repeats) {
  const auto num_dims = static_cast<size_t>(self.dim());
  only_if(repeats.size() >= num_dims);
  std::vector<int64_t> sizes = repeats.vec();
  for (const int64_t times : sizes) only_if(times >= 0);
  const size_t num_new = sizes.size() - num_dims;
  for (size_t i = 0; i < num_dims; ++i) sizes[num_new + i] *= self.sizes()[i];
  return dense(sizes, self.scalar_type());
}

// Rule for pixel shuffle, which turns groups of channels into pixels.
Tensor pixel_shuffle(const Tensor& self, int64_t factor) {
  only_if(self.is_contiguous() && self.dim() >= 3 && factor > 0 && self.numel() > 0);
  only_if(self.size(-3) % (factor * factor) == 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.end()[-3] /= factor * factor;
  sizes.end()[-2] *= factor;
  sizes.end()[-1] *= factor;
  return dense(sizes, self.scalar_type());
}

Tensor pixel_unshuffle(const Tensor& self, int64_t factor) {
  only_if(self.is_contiguous() && self.dim() >= 3 && factor > 0 && self.numel() > 0);
  only_if(self.size(-2) % factor == 0 && self.size(-1) % factor == 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.end()[-3] *= factor * factor;
  sizes.end()[-2] /= factor;
  sizes.end()[-1] /= factor;
  return dense(sizes, self.scalar_type());
}

Tensor replication_pad2d(const Tensor& self, IntArrayRef padding) {
  only_if(self.is_contiguous());
  return at::meta::replication_pad2d(self, padding);
}

}  // namespace

void list_indexing_rules(Rules& rules) {
  METADATA_RULE(fill_Scalar, filled_with);
  METADATA_RULE(fill__Scalar, fill_with);
  METADATA_RULE(masked_fill__Scalar, masked_fill_with);
  METADATA_RULE(copy, copy);
  METADATA_RULE(select_scatter, select_scatter);
  METADATA_RULE(slice_scatter, slice_scatter);
  METADATA_RULE(diagonal_backward, diagonal_backward);
  METADATA_RULE(index_Tensor, chosen);
  METADATA_RULE(index_put, with_put);
  METADATA_RULE(index_put_, put_);
  METADATA_RULE(index_fill_int_Scalar, index_fill);
  METADATA_RULE(flip, flip);
  METADATA_RULE(roll, roll);
  METADATA_RULE(repeat, repeat);
  METADATA_RULE(replication_pad2d, replication_pad2d);
  METADATA_RULE(pixel_shuffle, pixel_shuffle);
  METADATA_RULE(pixel_unshuffle, pixel_unshuffle);
}

}  // namespace poptorch_emu::metadata
