// Keeps attention as one operation in a traced graph if PyTorch has a fused CPU kernel for it.

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <limits>

namespace poptorch_emu {
namespace {

// Returns an additive mask, as the fused kernel expects; a boolean mask marks the elements to use.
std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask,
                                        at::ScalarType dtype) {
  if (!mask || mask->scalar_type() != at::kBool) return mask;
  const auto options = mask->options().dtype(dtype);
  return at::where(*mask, at::scalar_tensor(0.0, options),
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(), options));
}

at::Tensor fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                           std::optional<double> scale) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p,
                                                                     is_causal, mask, scale));
}

// Records the fused kernel if eager PyTorch would use it for CPU tensors. PyTorch's own function
// decides, from sizes, strides and types. Otherwise it records PyTorch's composition, whose dropout
// is intercepted, too.
at::Tensor record_scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                               const at::Tensor& value,
                                               const std::optional<at::Tensor>& mask,
                                               double dropout_p, bool is_causal,
                                               std::optional<double> scale, bool enable_gqa) {
  const auto choice = static_cast<at::SDPBackend>(at::native::_fused_sdp_choice_cpp(
      query, key, value, mask, dropout_p, is_causal, scale, enable_gqa));
  if (choice != at::SDPBackend::flash_attention) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal,
                                                    scale, enable_gqa);
  }
  const std::optional<at::Tensor> added = additive_mask(mask, query.scalar_type());
  if (query.dim() == 4)
    return fused_attention(query, key, value, added, dropout_p, is_causal, scale);
  // PyTorch 2.14 and later also choose the kernel for three dimensions, as for a batch of one.
  const std::optional<at::Tensor> mask_of_batch =
      added && added->dim() == 3 ? added->unsqueeze(0) : added;
  return fused_attention(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask_of_batch,
                         dropout_p, is_causal, scale)
      .squeeze(0);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradIPU, m) {
  m.impl("scaled_dot_product_attention", record_scaled_dot_product_attention);
}

}  // namespace poptorch_emu
