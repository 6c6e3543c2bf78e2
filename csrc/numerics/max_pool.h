#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// Max pooling of channels-last images, with exactly the numbers and indices of PyTorch.
class MaxPool {
 public:
  // Accepts the arguments of `aten::max_pool2d_with_indices`; reads only the sizes of `images`.
  MaxPool(const at::Tensor& images, at::IntArrayRef kernel, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode);

  // Return height and width of the result.
  int64_t height() const { return rows_.size(); }
  int64_t width() const { return columns_.size(); }

  // Returns how many numbers are read for each channel of an image.
  int64_t num_reads() const { return height() * width() * rows_.kernel * columns_.kernel; }

  // Writes the maxima of one row of windows over an image (H, W, channels) to `maxima` (width,
  // channels), and their positions to `indices` unless it is null.
  void take_row(const float* image, int64_t channels, int64_t row, float* maxima,
                int64_t* indices) const;

  // Positions in one dimension that a window covers: `count` of them, `dilation` apart.
  struct Span {
    int64_t first, count;
  };

  // Returns all rows from the first to the last that the rows of windows [begin, end) read. `end`
  // is set to the largest one for which these are at most `most`, and to `begin + 1` at least.
  Span rows_read(int64_t begin, int64_t most, int64_t& end) const;

  // Writes the maxima of one row of windows over a single channel to `maxima` (width), after an
  // optional ReLU. `plane` holds rows of the image from `first` on, `pitch` numbers apart; the
  // columns' maxima are written to `largest` (pitch).
  void take_row_of_plane(const float* plane, int64_t pitch, int64_t first, int64_t row,
                         bool has_relu, float* largest, float* maxima) const;

 private:
  // The windows of one dimension.
  struct Axis {
    Axis(int64_t image_size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
         bool ceil_mode);
    int64_t size() const { return static_cast<int64_t>(spans.size()); }

    int64_t image_size, kernel, dilation;
    std::vector<Span> spans;  // one for each window
    bool are_pairs;           // whether windows are neighbouring pairs from the first position on
  };
  Axis rows_, columns_;
};

}  // namespace poptorch_emu
