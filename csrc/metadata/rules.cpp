// Our rules for the metadata of results, for operations without rules in PyTorch's C++.
//
// Other files in this folder hold the rules for gradients, losses, reductions, factories and
// copies, and for writes to parts of a tensor.
//
// The rules belong to the library of `structured_rules.cpp` and cover only the cases that models
// use. For other or wrong arguments a rule throws `NotImplementedError`, and PyTorch's rules return
// a result or an error. Tensors are meta tensors, or wrapped numbers.

#include "metadata/rules.h"

#include "metadata/convolution_layout.h"

#include <ATen/Operators.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace poptorch_emu::metadata {
namespace {

// Rules for elementwise operations.

Tensor relu(const Tensor& self) {
  only_if(self.scalar_type() != at::kBool);
  return at::meta::threshold(self, 0, 0);
}

Tensor& relu_(Tensor& self) {
  only_if(self.scalar_type() != at::kBool && !overlaps(self));
  return self;
}

Tensor abs(const Tensor& self) { return at::meta::neg(self); }

Tensor hardtanh(const Tensor& self, const Scalar& min, const Scalar& max) {
  only_if(self.is_floating_point() && !min.isSymbolic() && !max.isSymbolic());
  return at::meta::clamp(self, min, max);
}

Tensor hardswish(const Tensor& self) {
  only_if(self.is_floating_point());
  return at::meta::silu(self);
}

Tensor nan_to_num(const Tensor& self, std::optional<double>, std::optional<double>,
                  std::optional<double>) {
  only_if(self.is_floating_point());
  return at::meta::neg(self);
}

Tensor celu(const Tensor& self, const Scalar& alpha) {
  only_if(self.is_floating_point() && alpha.toDouble() != 0);
  return at::meta::elu(self, alpha, 1, 1);
}

// Rule for operations that return a bool for each element.
Tensor truth(const Tensor& self) { return at::meta::eq(self, 0); }

Tensor truth_of_two(const Tensor& self, const Tensor& other) { return at::meta::eq(self, other); }

Tensor& truth_of_two_(Tensor& self, const Tensor& other) { return at::meta::eq_(self, other); }

// A number in place of a tensor is a 0-d tensor that does not take part in type promotion.
template <Tensor (*function)(const Tensor&, const Tensor&)>
Tensor with_number(const Tensor& self, const Scalar& other) {
  return function(self, at::native::wrapped_scalar_tensor(other));
}

template <Tensor (*function)(const Tensor&, const Tensor&, const Scalar&)>
Tensor with_scaled_number(const Tensor& self, const Scalar& other, const Scalar& alpha) {
  return function(self, at::native::wrapped_scalar_tensor(other), alpha);
}

Tensor quotient(const Tensor& self, const Tensor& other) {
  only_if(at::result_type(self, other) != at::kBool);
  return at::meta::div(self, other, "floor");
}

// An in-place operation keeps the metadata if the number's type can be cast to the tensor's.
Tensor& keep_metadata(Tensor& self, const Scalar& other) {
  only_if(at::canCast(at::result_type(self, other), self.scalar_type()));
  return self;
}

Tensor& add_number_(Tensor& self, const Scalar& other, const Scalar&) {
  return keep_metadata(self, other);
}

Tensor& div_number_(Tensor& self, const Scalar& other) {
  only_if(self.is_floating_point());
  return keep_metadata(self, other);
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  only_if(condition.scalar_type() == at::kBool);
  auto iterator = at::TensorIteratorConfig()
                      .check_all_same_dtype(false)
                      .check_all_same_device(false)
                      .declare_static_dtype_and_device(at::result_type(self, other), at::kMeta)
                      .add_owned_output(Tensor())
                      .add_owned_const_input(condition)
                      .add_owned_const_input(self)
                      .add_owned_const_input(other)
                      .build();
  return iterator.output();
}

bool is_filled_in_place(const Tensor& self, const Tensor& mask) {
  return mask.scalar_type() == at::kBool && at::is_expandable_to(mask.sizes(), self.sizes());
}

Tensor masked_fill_number(const Tensor& self, const Tensor& mask, const Scalar& value) {
  only_if(is_filled_in_place(self, mask));
  only_if(at::canCast(value.type(), self.scalar_type()));
  return dense(self.sizes(), self.scalar_type());
}

Tensor masked_fill_tensor(const Tensor& self, const Tensor& mask, const Tensor& value) {
  only_if(is_filled_in_place(self, mask) && value.dim() == 0);
  only_if(at::canCast(value.scalar_type(), self.scalar_type()));
  return dense(self.sizes(), self.scalar_type());
}

// Rules for operations that take or combine parts of tensors.

Tensor stack(at::TensorList tensors, int64_t dim) {
  only_if(!tensors.empty());
  const Tensor& first = tensors.front();
  for (const Tensor& tensor : tensors) {
    only_if(tensor.is_contiguous() && tensor.sizes() == first.sizes() &&
            tensor.scalar_type() == first.scalar_type());
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  const int64_t place = at::maybe_wrap_dim(dim, first.dim() + 1);
  sizes.insert(sizes.begin() + place, static_cast<int64_t>(tensors.size()));
  return dense(sizes, first.scalar_type());
}

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  only_if(self.dim() > 0 && index.dim() == 1 && at::isIntegralType(index.scalar_type(), false));
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return dense(sizes, self.scalar_type());
}

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t, bool, bool) {
  only_if(weight.dim() == 2);
  only_if(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt);
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  return dense(sizes, weight.scalar_type());
}

Tensor constant_pad_nd(const Tensor& self, IntArrayRef pad, const Scalar&) {
  only_if(self.is_contiguous() && pad.size() % 2 == 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  only_if(pad.size() / 2 <= sizes.size());
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    int64_t& size = sizes[sizes.size() - 1 - i];
    size += pad[2 * i] + pad[2 * i + 1];
    only_if(size > 0);
  }
  return dense(sizes, self.scalar_type());
}

// Rules for layers.

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                   bool is_transposed, IntArrayRef output_padding, int64_t groups) {
  const size_t num_dims = static_cast<size_t>(weight.dim());
  only_if(num_dims >= 3 && input.dim() == weight.dim() && groups > 0);
  const int64_t num_read = is_transposed ? weight.size(0) : weight.size(1) * groups;
  const int64_t num_made = is_transposed ? weight.size(1) * groups : weight.size(0);
  only_if(input.size(1) == num_read && weight.size(0) % groups == 0);
  only_if(input.numel() > 0 && weight.numel() > 0);
  only_if(input.scalar_type() == weight.scalar_type());
  only_if(is_affine_of(bias, {num_made}, weight.scalar_type()));
  const auto at_dim = [](IntArrayRef values, size_t dim) {
    return values.size() == 1 ? values[0] : values.at(dim);
  };
  std::vector<int64_t> sizes{input.size(0), num_made};
  for (size_t dim = 0; dim + 2 < num_dims; ++dim) {
    const auto axis = static_cast<int64_t>(dim) + 2;
    const int64_t window = at_dim(dilation, dim) * (weight.size(axis) - 1) + 1;
    const int64_t step = at_dim(stride, dim), rim = 2 * at_dim(padding, dim);
    only_if(step > 0 && rim >= 0 && window > 0);
    const int64_t added = is_transposed ? at_dim(output_padding, dim) : 0;
    const int64_t room = input.size(axis) + rim - window;
    const int64_t size =
        is_transposed ? (input.size(axis) - 1) * step - rim + window + added : room / step + 1;
    only_if(size > 0 && (is_transposed || room >= 0) && added >= 0 && added < step);
    sizes.push_back(size);
  }
  const ConvolutionLayout layout(input, weight, bias, std::nullopt, stride, padding, dilation,
                                 is_transposed, output_padding, groups);
  return layout.empty(sizes);
}

Tensor safe_softmax(const Tensor& self, int64_t dim, OptionalType dtype) {
  only_if(is_plain(self) && dim >= -self.dim() && dim < self.dim());
  return dense(self.sizes(), dtype.value_or(self.scalar_type()));
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, OptionalBool train) {
  only_if(input.is_floating_point() && input.is_non_overlapping_and_dense());
  only_if(train.value_or(true) && p > 0 && p < 1);
  return {like(input, input.scalar_type()), like(input, at::kBool)};
}

Tensor prelu(const Tensor& self, const Tensor& weight) {
  only_if(is_plain(self) && weight.scalar_type() == self.scalar_type());
  only_if(weight.dim() <= self.dim() && at::is_expandable_to(weight.sizes(), self.sizes()));
  return dense(self.sizes(), self.scalar_type());
}

Tensor adaptive_avg_pool2d(const Tensor& self, IntArrayRef output_size) {
  only_if(self.dim() == 4 && self.is_contiguous() && self.numel() > 0 && output_size.size() == 2);
  only_if(self.is_floating_point());
  return dense({self.size(0), self.size(1), output_size[0], output_size[1]}, self.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const Tensor& input, IntArrayRef shape,
                                                     const OptionalTensor& weight,
                                                     const OptionalTensor& bias, double) {
  const size_t num_normed = shape.size();
  const auto num_dims = static_cast<size_t>(input.dim());
  only_if(is_plain(input));
  only_if(num_normed >= 1 && num_dims >= num_normed);
  only_if(input.sizes().slice(num_dims - num_normed) == shape);
  only_if(is_affine_of(weight, shape, input.scalar_type()));
  only_if(is_affine_of(bias, shape, input.scalar_type()));
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(num_normed), sizes.end(), 1);
  const ScalarType sums = type_of_sums(input);
  return {dense(input.sizes(), input.scalar_type()), dense(sizes, sums), dense(sizes, sums)};
}

std::tuple<Tensor, Tensor, Tensor> native_group_norm(const Tensor& input,
                                                     const OptionalTensor& weight,
                                                     const OptionalTensor& bias, int64_t num_images,
                                                     int64_t num_channels, int64_t num_elements,
                                                     int64_t num_groups, double) {
  const ScalarType dtype = input.scalar_type();
  only_if(is_plain(input) && type_of_sums(input) == dtype);
  only_if(input.numel() == num_images * num_channels * num_elements);
  only_if(num_groups > 0 && num_channels % num_groups == 0);
  only_if(is_affine_of(weight, {num_channels}, dtype) && is_affine_of(bias, {num_channels}, dtype));
  const std::vector<int64_t> groups{num_images, num_groups};
  return {dense(input.sizes(), dtype), dense(groups, dtype), dense(groups, dtype)};
}

std::tuple<Tensor, Tensor, Tensor> norm_of_channels(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& mean, const OptionalTensor& variance, bool is_training, double, double) {
  only_if(is_plain(input) && input.dim() >= 2);
  const std::vector<int64_t> channels{input.size(1)};
  for (const OptionalTensor& each : {weight, bias, mean, variance}) {
    only_if(is_affine_of(each, channels, input.scalar_type()));
  }
  only_if(is_training || (is_given(mean) && is_given(variance)));
  const ScalarType sums = type_of_sums(input);
  return {dense(input.sizes(), input.scalar_type()), dense(channels, sums), dense(channels, sums)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> functional_batch_norm(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
    const Tensor& mean, const Tensor& variance, bool is_training, double momentum, double eps) {
  const auto [output, sums, squares] =
      norm_of_channels(input, weight, bias, mean, variance, is_training, momentum, eps);
  return {output, sums, squares, dense(mean.sizes(), mean.scalar_type()),
          dense(variance.sizes(), variance.scalar_type())};
}

std::tuple<Tensor, Tensor> nll_loss2d(const Tensor& self, const Tensor& target,
                                      const OptionalTensor&, int64_t reduction, int64_t) {
  only_if(self.dim() == 4 && target.dim() == 3 && target.size(0) == self.size(0));
  only_if(target.size(1) == self.size(2) && target.size(2) == self.size(3));
  const bool is_reduced = reduction != at::Reduction::None;
  return {dense(is_reduced ? IntArrayRef() : target.sizes(), self.scalar_type()),
          dense({}, self.scalar_type())};
}

std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     double, bool, const OptionalTensor&, std::optional<double>) {
  only_if(query.dim() == 4);
  const Tensor sums = dense({query.size(0), query.size(2), query.size(1)}, type_of_sums(query));
  const Tensor log_sums =
      strided({query.size(0), query.size(1), query.size(2)},
              {sums.stride(0), sums.stride(2), sums.stride(1)}, sums.scalar_type());
  return {like(query, query.scalar_type()), log_sums};
}

void list_own_rules(Rules& rules) {
  METADATA_RULE(relu, relu);
  METADATA_RULE(abs, abs);
  METADATA_RULE(nan_to_num, nan_to_num);
  METADATA_RULE(celu, celu);
  METADATA_RULE(isinf, truth);
  METADATA_RULE(isnan, truth);
  METADATA_RULE(logical_not, truth);
  METADATA_RULE(logical_and, truth_of_two);
  METADATA_RULE(logical_or, truth_of_two);
  METADATA_RULE(logical_xor, truth_of_two);
  METADATA_RULE(logical_and_, truth_of_two_);
  METADATA_RULE(logical_or_, truth_of_two_);
  METADATA_RULE(logical_xor_, truth_of_two_);
  METADATA_RULE(hardtanh, hardtanh);
  METADATA_RULE(hardswish, hardswish);
  METADATA_RULE(add_Scalar, with_scaled_number<at::meta::add>);
  METADATA_RULE(sub_Scalar, with_scaled_number<at::meta::sub>);
  // The arguments of `rsub` are swapped, which does not change the metadata.
  METADATA_RULE(rsub_Scalar, with_scaled_number<at::meta::sub>);
  METADATA_RULE(mul_Scalar, with_number<at::meta::mul>);
  METADATA_RULE(div_Scalar, with_number<at::meta::div>);
  METADATA_RULE(remainder_Scalar, with_number<at::meta::remainder>);
  METADATA_RULE(fmod_Scalar, with_number<at::meta::fmod>);
  METADATA_RULE(floor_divide, quotient);
  METADATA_RULE(floor_divide_Scalar, with_number<quotient>);
  METADATA_RULE(relu_, relu_);
  METADATA_RULE(add__Scalar, add_number_);
  METADATA_RULE(sub__Scalar, add_number_);
  METADATA_RULE(mul__Scalar, keep_metadata);
  METADATA_RULE(div__Scalar, div_number_);
  METADATA_RULE(where_self, where);
  METADATA_RULE(masked_fill_Scalar, masked_fill_number);
  METADATA_RULE(masked_fill_Tensor, masked_fill_tensor);
  METADATA_RULE(stack, stack);
  METADATA_RULE(index_select, index_select);
  METADATA_RULE(embedding, embedding);
  METADATA_RULE(constant_pad_nd, constant_pad_nd);
  METADATA_RULE(convolution, convolution);
  METADATA_RULE(_adaptive_avg_pool2d, adaptive_avg_pool2d);
  METADATA_RULE(_safe_softmax, safe_softmax);
  METADATA_RULE(native_dropout, native_dropout);
  METADATA_RULE(_prelu_kernel, prelu);
  METADATA_RULE(native_layer_norm, native_layer_norm);
  METADATA_RULE(native_group_norm, native_group_norm);
  METADATA_RULE(native_batch_norm, norm_of_channels);
  METADATA_RULE(_native_batch_norm_legit_functional, functional_batch_norm);
  METADATA_RULE(nll_loss2d_forward, nll_loss2d);
  METADATA_RULE(_scaled_dot_product_flash_attention_for_cpu, attention);
}

}  // namespace

const Rules& all_rules() {
  static const Rules rules = [] {
    Rules made;
    list_own_rules(made);
    list_loss_rules(made);
    list_indexing_rules(made);
    list_reduction_rules(made);
    list_factory_rules(made);
    list_gradient_rules(made);
    list_structured_rules(made);
    return made;
  }();
  return rules;
}

void define_rules(const std::string& name) {
  static torch::Library library(torch::Library::DEF, "poptorch_emu_metadata", std::nullopt,
                                __FILE__, __LINE__);
  static std::set<std::string> defined;
  if (!defined.insert(name).second) return;
  const auto [begin, end] = all_rules().equal_range("aten::" + name);
  for (auto rule = begin; rule != end; ++rule) rule->second(library);
}

}  // namespace poptorch_emu::metadata
