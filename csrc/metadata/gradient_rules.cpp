// Our rules for the metadata of gradients; see also `rules.cpp`.

#include "metadata/rules.h"

#include "metadata/convolution_layout.h"

#include <ATen/Operators.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

namespace poptorch_emu::metadata {
namespace {

using Three = std::tuple<Tensor, Tensor, Tensor>;
using Mask = std::array<bool, 3>;

// Returns a gradient with this metadata, or an undefined tensor if it is not requested.
Tensor gradient_if(bool is_wanted, IntArrayRef sizes, ScalarType dtype) {
  return is_wanted ? dense(sizes, dtype) : Tensor();
}

Three convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                           at::OptionalIntArrayRef bias_sizes, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, bool is_transposed,
                           IntArrayRef output_padding, int64_t groups, Mask mask) {
  only_if(input.dim() == weight.dim() && gradient.dim() == input.dim() && input.dim() >= 3);
  only_if(input.numel() > 0 && weight.numel() > 0 && gradient.numel() > 0);
  const int64_t num_made = is_transposed ? weight.size(1) * groups : weight.size(0);
  only_if(groups > 0 && input.scalar_type() == weight.scalar_type());
  const ConvolutionLayout layout(input, weight, std::nullopt, bias_sizes, stride, padding, dilation,
                                 is_transposed, output_padding, groups);
  return {mask[0] ? layout.empty(input.sizes()) : Tensor(),
          mask[1] ? layout.empty(weight.sizes()) : Tensor(),
          gradient_if(mask[2], {num_made}, weight.scalar_type())};
}

Three native_layer_norm_backward(const Tensor& gradient, const Tensor& input, IntArrayRef shape,
                                 const Tensor&, const Tensor&, const OptionalTensor& weight,
                                 const OptionalTensor& bias, Mask mask) {
  only_if(is_plain(input) && gradient.sizes() == input.sizes());
  only_if(gradient.scalar_type() == input.scalar_type());
  only_if(is_affine_of(weight, shape, input.scalar_type()));
  only_if(is_affine_of(bias, shape, input.scalar_type()));
  return {gradient_if(mask[0], input.sizes(), input.scalar_type()),
          gradient_if(mask[1] && is_given(weight), shape, input.scalar_type()),
          gradient_if(mask[2] && is_given(bias), shape, input.scalar_type())};
}

Three native_group_norm_backward(const Tensor& gradient, const Tensor& input, const Tensor&,
                                 const Tensor&, const OptionalTensor& weight, int64_t,
                                 int64_t num_channels, int64_t, int64_t, Mask mask) {
  const ScalarType dtype = input.scalar_type();
  only_if(is_plain(gradient) && is_plain(input) && gradient.sizes() == input.sizes());
  only_if(gradient.scalar_type() == dtype && type_of_sums(input) == dtype);
  only_if(is_affine_of(weight, {num_channels}, dtype));
  return {gradient_if(mask[0], input.sizes(), dtype), gradient_if(mask[1], {num_channels}, dtype),
          gradient_if(mask[2], {num_channels}, dtype)};
}

std::tuple<Tensor, Tensor> prelu_backward(const Tensor& gradient, const Tensor& self,
                                          const Tensor& weight) {
  const ScalarType dtype = self.scalar_type();
  only_if(is_plain(gradient) && is_plain(self) && gradient.sizes() == self.sizes());
  only_if(gradient.scalar_type() == dtype && weight.scalar_type() == dtype);
  only_if(weight.dim() <= self.dim() && at::is_expandable_to(weight.sizes(), self.sizes()));
  return {dense(self.sizes(), dtype), dense(self.sizes(), dtype)};
}

Three native_batch_norm_backward(const Tensor& gradient, const Tensor& input,
                                 const OptionalTensor& weight, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, bool, double, Mask mask) {
  only_if(is_plain(input) && gradient.sizes() == input.sizes());
  only_if(gradient.scalar_type() == input.scalar_type() && input.dim() >= 2);
  only_if(is_given(weight) || !(mask[1] || mask[2]));
  const std::vector<int64_t> channels{input.size(1)};
  only_if(is_affine_of(weight, channels, input.scalar_type()));
  return {gradient_if(mask[0], input.sizes(), input.scalar_type()),
          gradient_if(mask[1], channels, input.scalar_type()),
          gradient_if(mask[2], channels, input.scalar_type())};
}

// Rule for a weight that consists of a direction, and a length for each row.
std::tuple<Tensor, Tensor> weight_norm(const Tensor& direction, const Tensor& lengths, int64_t) {
  only_if(is_plain(direction) && is_plain(lengths));
  only_if(direction.scalar_type() == lengths.scalar_type());
  only_if(type_of_sums(lengths) == lengths.scalar_type());
  return {dense(direction.sizes(), direction.scalar_type()),
          dense(lengths.sizes(), lengths.scalar_type())};
}

std::tuple<Tensor, Tensor> weight_norm_backward(const Tensor& gradient, const Tensor& direction,
                                                const Tensor& lengths, const Tensor&, int64_t dim) {
  only_if(gradient.is_contiguous() && gradient.sizes() == direction.sizes());
  return weight_norm(direction, lengths, dim);
}

Three attention_backward(const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value,
                         const Tensor&, const Tensor&, double, bool, const OptionalTensor&,
                         std::optional<double>) {
  const auto rows_first = [](const Tensor& tensor) {
    only_if(tensor.dim() == 4);
    const Tensor rows = dense({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)},
                              tensor.scalar_type());
    return strided(tensor.sizes(), {rows.stride(0), rows.stride(2), rows.stride(1), 1},
                   tensor.scalar_type());
  };
  return {rows_first(query), rows_first(key), rows_first(value)};
}

Tensor native_dropout_backward(const Tensor& gradient, const Tensor& mask, double) {
  only_if(gradient.is_floating_point() && mask.sizes() == gradient.sizes());
  only_if(mask.scalar_type() == at::kBool);
  return at::meta::mul(gradient, mask);
}

Tensor select_backward(const Tensor& gradient, IntArrayRef sizes, int64_t, int64_t) {
  only_if(gradient.dim() + 1 == static_cast<int64_t>(sizes.size()));
  return dense(sizes, gradient.scalar_type());
}

Tensor slice_backward(const Tensor& gradient, IntArrayRef sizes, int64_t, int64_t, int64_t,
                      int64_t) {
  only_if(gradient.dim() == static_cast<int64_t>(sizes.size()));
  return dense(sizes, gradient.scalar_type());
}

Tensor embedding_dense_backward(const Tensor& gradient, const Tensor&, int64_t num_weights, int64_t,
                                bool) {
  only_if(gradient.dim() > 0 && gradient.numel() > 0);
  return dense({num_weights, gradient.size(-1)}, gradient.scalar_type());
}

Tensor nll_loss2d_backward(const Tensor&, const Tensor& self, const Tensor& target,
                           const OptionalTensor&, int64_t, int64_t, const Tensor&) {
  only_if(self.dim() == 4 && target.dim() == 3);
  return dense(self.sizes(), self.scalar_type());
}

}  // namespace

void list_gradient_rules(Rules& rules) {
  METADATA_RULE(convolution_backward, convolution_backward);
  METADATA_RULE(native_layer_norm_backward, native_layer_norm_backward);
  METADATA_RULE(native_batch_norm_backward, native_batch_norm_backward);
  METADATA_RULE(native_group_norm_backward, native_group_norm_backward);
  METADATA_RULE(_prelu_kernel_backward, prelu_backward);
  METADATA_RULE(_weight_norm_interface, weight_norm);
  METADATA_RULE(_weight_norm_interface_backward, weight_norm_backward);
  METADATA_RULE(_scaled_dot_product_flash_attention_for_cpu_backward, attention_backward);
  METADATA_RULE(native_dropout_backward, native_dropout_backward);
  METADATA_RULE(select_backward, select_backward);
  METADATA_RULE(slice_backward, slice_backward);
  METADATA_RULE(embedding_dense_backward, embedding_dense_backward);
  METADATA_RULE(nll_loss2d_backward, nll_loss2d_backward);
}

}  // namespace poptorch_emu::metadata
