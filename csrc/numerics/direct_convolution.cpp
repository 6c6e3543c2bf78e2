#include "numerics/direct_convolution.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "common/vectors.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace direct_convolution {
namespace {

using Registers = vectors::Registers<vectors::Avx2>;
using Vector = Registers::Vector;

constexpr int64_t kLanes = Registers::kLanes;
// Channels and vectors of positions whose sums fit in the 16 registers with their operands.
constexpr int64_t kChannels = 4, kVectors = 3;
// Numbers of the result of `kChannels` channels that are computed before they are pooled: 16 KiB.
constexpr int64_t kMostNumbers = 4096;

int64_t item(at::IntArrayRef values, size_t place) {
  return values.size() == 1 ? values[0] : values[place];
}

int64_t up_to_multiple(int64_t number, int64_t of) { return (number + of - 1) / of * of; }

// Computes the sums of `kChannels` channels at `kCount` vectors of positions: the first number that
// each one reads is at `from`, and the results of the first channel at `to`.
template <int64_t kCount>
POPTORCH_EMU_INLINE void compute_tile(const std::array<const float*, kVectors>& from,
                                      const int64_t* offsets, int64_t depth, const float* weights,
                                      const float* biases, const std::array<float*, kVectors>& to,
                                      int64_t plane) {
  Vector sums[kCount][kChannels];
#pragma GCC unroll 8
  for (int64_t c = 0; c < kChannels; ++c) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kCount; ++v) sums[v][c] = Vector{} + biases[c];
  }
  for (int64_t k = 0; k < depth; ++k, weights += kChannels) {
    Vector numbers[kCount];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kCount; ++v) numbers[v] = Registers::at(from[v] + offsets[k]);
#pragma GCC unroll 8
    for (int64_t c = 0; c < kChannels; ++c) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kCount; ++v) sums[v][c] += weights[c] * numbers[v];
    }
  }
#pragma GCC unroll 8
  for (int64_t v = 0; v < kCount; ++v) {
#pragma GCC unroll 8
    for (int64_t c = 0; c < kChannels; ++c) Registers::at(to[v] + c * plane) = sums[v][c];
  }
}

}  // namespace
}  // namespace direct_convolution

using namespace direct_convolution;

// Memory of one thread.
struct DirectConvolution::Memory {
  explicit Memory(const DirectConvolution& of)
      : rows(std::max<int64_t>(kMostNumbers / (kChannels * of.plane_pitch_), 1)) {
    // The last vector of a row reads beyond it.
    padded.resize(of.num_inputs_ * of.padded_height_ * of.pitch_ + kLanes);
    largest.resize(of.plane_pitch_);
  }

  int64_t rows;                // of the result that are computed at once, if a window has no more
  std::vector<float> padded;   // an image with its padding, (channels, rows, pitch)
  std::vector<float> planes;   // rows of the result, (kChannels, rows, plane pitch)
  std::vector<float> largest;  // the maximum of each column of a row of windows
};

bool DirectConvolution::is_for(at::IntArrayRef stride) {
  return vectors::width() > 0 &&
         std::all_of(stride.begin(), stride.end(), [](int64_t step) { return step == 1; });
}

DirectConvolution::DirectConvolution(const at::Tensor& images, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias, at::IntArrayRef padding,
                                     at::IntArrayRef dilation, const MaxPool& pool, bool has_relu)
    : pool_(pool),
      has_relu_(has_relu),
      num_inputs_(images.size(1)),
      num_outputs_(weight.size(0)),
      image_height_(images.size(2)),
      image_width_(images.size(3)),
      pad_height_(item(padding, 0)),
      pad_width_(item(padding, 1)) {
  const int64_t kernel_height = weight.size(2), kernel_width = weight.size(3);
  padded_height_ = image_height_ + 2 * pad_height_;
  pitch_ = image_width_ + 2 * pad_width_;
  width_ = pitch_ - item(dilation, 1) * (kernel_width - 1);
  height_ = padded_height_ - item(dilation, 0) * (kernel_height - 1);
  is_flat_ = up_to_multiple((height_ - 1) * pitch_ + width_, kLanes) <
             height_ * up_to_multiple(width_, kLanes);
  plane_pitch_ = is_flat_ ? pitch_ : up_to_multiple(width_, kLanes);
  depth_ = num_inputs_ * kernel_height * kernel_width;
  offsets_.reserve(depth_);
  for (int64_t input = 0; input < num_inputs_; ++input) {
    for (int64_t y = 0; y < kernel_height; ++y) {
      const int64_t row = input * padded_height_ + y * item(dilation, 0);
      for (int64_t x = 0; x < kernel_width; ++x)
        offsets_.push_back(row * pitch_ + x * item(dilation, 1));
    }
  }
  const int64_t num_channels = up_to_multiple(num_outputs_, kChannels);
  weights_.assign(num_channels * depth_, 0.0f);
  const float* from = weight.const_data_ptr<float>();
  for (int64_t channel = 0; channel < num_outputs_; ++channel) {
    const int64_t block = channel / kChannels * kChannels;
    float* const to = weights_.data() + block * depth_ + channel % kChannels;
    for (int64_t k = 0; k < depth_; ++k) to[k * kChannels] = *from++;
  }
  biases_.assign(num_channels, 0.0f);
  if (bias) std::copy_n(bias->const_data_ptr<float>(), num_outputs_, biases_.begin());
}

int64_t DirectConvolution::plane_size(int64_t num_rows) const {
  return up_to_multiple(num_rows * plane_pitch_, kLanes);
}

void DirectConvolution::pad(const float* image, float* padded) const {
  for (int64_t input = 0; input < num_inputs_; ++input) {
    float* to = padded + (input * padded_height_ + pad_height_) * pitch_ + pad_width_;
    for (int64_t row = 0; row < image_height_; ++row, image += image_width_, to += pitch_)
      std::copy_n(image, image_width_, to);
  }
}

void DirectConvolution::convolve(const float* padded, const float* weights, const float* biases,
                                 int64_t num_rows, float* planes) const {
  const int64_t numbers = is_flat_ ? (num_rows - 1) * pitch_ + width_ : plane_pitch_;
  const int64_t in_row = up_to_multiple(numbers, kLanes) / kLanes;
  const int64_t count = is_flat_ ? in_row : num_rows * in_row, plane = plane_size(num_rows);
  vectors::run_for(vectors::Avx2(), [&]() __attribute__((always_inline)) {
    const auto compute = [&](int64_t first, auto number) __attribute__((always_inline)) {
      constexpr int64_t kCount = decltype(number)::value;
      std::array<const float*, kVectors> from{};
      std::array<float*, kVectors> to{};
      for (int64_t v = 0; v < kCount; ++v) {
        const int64_t row = (first + v) / in_row, column = (first + v) % in_row * kLanes;
        from[v] = padded + row * pitch_ + column;
        to[v] = planes + row * plane_pitch_ + column;
      }
      compute_tile<kCount>(from, offsets_.data(), depth_, weights, biases, to, plane);
    };
    int64_t next = 0;
    for (; next + kVectors <= count; next += kVectors)
      compute(next, std::integral_constant<int64_t, kVectors>());
    if (next + 2 == count) compute(next, std::integral_constant<int64_t, 2>());
    if (next + 1 == count) compute(next, std::integral_constant<int64_t, 1>());
  });
}

void DirectConvolution::run(const float* images, int64_t count, float* results) const {
  Memory memory(*this);
  const int64_t of_image = num_inputs_ * image_height_ * image_width_;
  const int64_t of_result = pool_.height() * pool_.width();
  for (int64_t image = 0; image < count; ++image, results += num_outputs_ * of_result) {
    pad(images + image * of_image, memory.padded.data());
    for (int64_t channel = 0; channel < num_outputs_; channel += kChannels) {
      const int64_t num_channels = std::min(kChannels, num_outputs_ - channel);
      for (int64_t row = 0, end; row < pool_.height(); row = end) {
        const MaxPool::Span rows = pool_.rows_read(row, memory.rows, end);
        memory.planes.resize(kChannels * plane_size(rows.count));
        convolve(memory.padded.data() + rows.first * pitch_, weights_.data() + channel * depth_,
                 biases_.data() + channel, rows.count, memory.planes.data());
        for (int64_t c = 0; c < num_channels; ++c) {
          const float* const plane = memory.planes.data() + c * plane_size(rows.count);
          float* to = results + (channel + c) * of_result + row * pool_.width();
          for (int64_t window = row; window < end; ++window, to += pool_.width())
            pool_.take_row_of_plane(plane, plane_pitch_, rows.first, window, has_relu_,
                                    memory.largest.data(), to);
        }
      }
    }
  }
}

}  // namespace poptorch_emu

#pragma GCC pop_options
