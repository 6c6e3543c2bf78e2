#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "numerics/max_pool.h"

namespace poptorch_emu {

// A convolution of images with few channels, the max pooling after it and optionally a ReLU.
//
// Libraries vectorise a convolution over channels, which leaves most lanes empty if there are few.
// Here a vector holds neighbouring positions of one channel. The result of a few channels stays in
// the first-level cache until it is pooled. Each sum starts with the bias and is added up in the
// order of the weight's memory, whatever the number of images or threads.
class DirectConvolution {
 public:
  // Returns whether this processor and these arguments are supported: AVX2 and strides of 1.
  static bool is_for(at::IntArrayRef stride);

  // Reads only the sizes of `images` (N, C, H, W); `pool` takes windows of the result.
  DirectConvolution(const at::Tensor& images, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, at::IntArrayRef padding,
                    at::IntArrayRef dilation, const MaxPool& pool, bool has_relu);

  // Computes `count` contiguous images (C, H, W) to results (channels, pooled H, pooled W).
  void run(const float* images, int64_t count, float* results) const;

 private:
  struct Memory;
  int64_t plane_size(int64_t num_rows) const;
  void pad(const float* image, float* padded) const;
  void convolve(const float* padded, const float* weights, const float* biases, int64_t num_rows,
                float* planes) const;

  const MaxPool& pool_;
  const bool has_relu_;
  const int64_t num_inputs_, num_outputs_;
  const int64_t image_height_, image_width_, pad_height_, pad_width_;
  int64_t pitch_, padded_height_;  // of the padded image: numbers in a row, rows of a channel
  int64_t width_, height_;         // of the result
  // Vectors run on from one row of the result to the next, if this takes fewer of them; numbers
  // between two rows are then computed, too, and not read.
  bool is_flat_;
  int64_t plane_pitch_;           // numbers from one row of the result to the next
  int64_t depth_;                 // products in a sum
  std::vector<int64_t> offsets_;  // of the `depth_` numbers that a window reads
  std::vector<float> weights_;    // (blocks of channels, depth, channels of a block)
  std::vector<float> biases_;
};

}  // namespace poptorch_emu
