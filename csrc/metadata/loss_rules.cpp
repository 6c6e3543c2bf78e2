// Our rules for the metadata of losses, activations and their gradients; see also `rules.cpp`.

#include "metadata/rules.h"

#include <ATen/Operators.h>
#include <ATen/core/Reduction.h>

#include <tuple>

namespace poptorch_emu::metadata {
namespace {

bool are_alike(const Tensor& x, const Tensor& y) {
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type();
}

// Rules for losses.

// Rule for losses: one number for each element, or a single number after a reduction.
Tensor loss(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
            int64_t reduction) {
  only_if(is_plain(self) && target.is_contiguous() && are_alike(self, target));
  only_if(!is_given(weight) || (weight->scalar_type() == self.scalar_type() &&
                                at::is_expandable_to(weight->sizes(), self.sizes())));
  const bool is_reduced = reduction != at::Reduction::None;
  return dense(is_reduced ? IntArrayRef() : self.sizes(), self.scalar_type());
}

Tensor loss_of_logits(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                      const OptionalTensor& weight_of_ones, int64_t reduction) {
  only_if(!is_given(weight_of_ones));
  return loss(self, target, weight, reduction);
}

Tensor huber_loss(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  only_if(delta > 0);
  return loss(self, target, std::nullopt, reduction);
}

Tensor loss_backward(const Tensor& gradient, const Tensor& self, const Tensor& target,
                     const OptionalTensor& weight, int64_t reduction) {
  const Tensor losses = loss(self, target, weight, reduction);
  only_if(gradient.is_contiguous() && are_alike(gradient, losses));
  return dense(self.sizes(), self.scalar_type());
}

Tensor mse_loss_backward(const Tensor& gradient, const Tensor& self, const Tensor& target,
                         int64_t reduction) {
  return loss_backward(gradient, self, target, std::nullopt, reduction);
}

// Rule for the gradients of smooth L1 and Huber losses.
Tensor bent_loss_backward(const Tensor& gradient, const Tensor& self, const Tensor& target,
                          int64_t reduction, double) {
  return loss_backward(gradient, self, target, std::nullopt, reduction);
}

// Rules for activations and their gradients.

// Rule for log-sigmoid, whose second result only the gradient reads.
std::tuple<Tensor, Tensor> log_sigmoid(const Tensor& self) {
  only_if(is_plain(self));
  return {dense(self.sizes(), self.scalar_type()), dense(self.sizes(), self.scalar_type())};
}

Tensor activation_backward(const Tensor& gradient, const Tensor& self) {
  only_if(self.is_floating_point() && are_alike(gradient, self));
  return at::meta::mul(gradient, self);
}

Tensor log_sigmoid_backward(const Tensor& gradient, const Tensor& self, const Tensor&) {
  only_if(self.is_contiguous() || gradient.is_non_overlapping_and_dense());
  return activation_backward(gradient, self);
}

Tensor hardtanh_backward(const Tensor& gradient, const Tensor& self, const Scalar&, const Scalar&) {
  return activation_backward(gradient, self);
}

// Rule for the gradient of GLU, which returns half as many channels as it reads.
Tensor glu_backward(const Tensor& gradient, const Tensor& self, int64_t dim) {
  only_if(is_plain(self) && gradient.scalar_type() == self.scalar_type());
  only_if(gradient.sizes() == at::meta::glu(self, dim).sizes());
  return dense(self.sizes(), self.scalar_type());
}

}  // namespace

void list_loss_rules(Rules& rules) {
  METADATA_RULE(binary_cross_entropy, loss);
  METADATA_RULE(binary_cross_entropy_backward, loss_backward);
  METADATA_RULE(binary_cross_entropy_with_logits, loss_of_logits);
  METADATA_RULE(huber_loss, huber_loss);
  METADATA_RULE(huber_loss_backward, bent_loss_backward);
  METADATA_RULE(mse_loss_backward, mse_loss_backward);
  METADATA_RULE(smooth_l1_loss_backward, bent_loss_backward);
  METADATA_RULE(glu_backward, glu_backward);
  METADATA_RULE(hardswish_backward, activation_backward);
  METADATA_RULE(hardtanh_backward, hardtanh_backward);
  METADATA_RULE(log_sigmoid_backward, log_sigmoid_backward);
  METADATA_RULE(log_sigmoid_forward, log_sigmoid);
  METADATA_RULE(mish_backward, activation_backward);
}

}  // namespace poptorch_emu::metadata
