#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>

#include <array>

#include "numerics/permuted_copy.h"

namespace poptorch_emu {

// Returns x (N, C, H, W) in channels-last layout, or x itself if it has this layout. If sizes of 1
// make the layout ambiguous, it gets the strides by which PyTorch's kernels recognise it.
inline at::Tensor channels_last(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() == 4, "channels_last got a tensor of shape ", x.sizes(),
                    "; expected (batch, channels, height, width).");
  const int64_t channels = x.size(1), height = x.size(2), width = x.size(3);
  const std::array<int64_t, 4> strides = {height * width * channels, 1, width * channels, channels};
  if (x.strides() == at::IntArrayRef(strides)) return x;
  if (x.is_contiguous(at::MemoryFormat::ChannelsLast)) return at::as_strided(x, x.sizes(), strides);
  return permuted_copy(x.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
}

}  // namespace poptorch_emu
