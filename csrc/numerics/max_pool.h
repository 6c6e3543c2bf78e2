#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// Max pooling of images whose places have all their channels next to each other: PyTorch's numbers
// and indices, to the bit.
class MaxPool {
 public:
  // The arguments of `aten::max_pool2d_with_indices`; of `images` (N, C, H, W) only the sizes
  // matter.
  MaxPool(const at::Tensor& images, at::IntArrayRef kernel, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode);

  // Of the result.
  int64_t height() const { return rows_.size(); }
  int64_t width() const { return columns_.size(); }

  // How many numbers are read for each channel of an image.
  int64_t num_reads() const { return height() * width() * rows_.kernel * columns_.kernel; }

  // Takes the maxima of one row of windows over an image (H, W, channels) to `maxima`
  // (width, channels). Notes where they are, unless `indices` is null.
  void take_row(const float* image, int64_t channels, int64_t row, float* maxima,
                int64_t* indices) const;

  // Which places of a dimension a window covers: `count` of them, `dilation` apart.
  struct Span {
    int64_t first, count;
  };

 private:
  // One dimension of the windows.
  struct Axis {
    Axis(int64_t image_size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
         bool ceil_mode);
    int64_t size() const { return static_cast<int64_t>(spans.size()); }

    int64_t image_size, kernel, dilation;
    std::vector<Span> spans;  // by window
  };
  Axis rows_, columns_;
};

}  // namespace poptorch_emu
