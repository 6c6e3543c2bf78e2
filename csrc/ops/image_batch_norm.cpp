// Batch norm of channels-last images in training, and its gradient.
//
// PyTorch's kernel for this layout accumulates in single precision and is less exact than its
// kernel for contiguous images. Here a few rows are summed in single precision, and these sums in
// double. Parts of rows are fixed, so that the bits do not depend on the number of threads.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "common/for_each_cpu.h"
#include "common/sharing.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno")

namespace poptorch_emu::image {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Number of rows whose sums are kept in single precision.
constexpr int64_t kExactRows = 32;
// Number of rows in one part.
constexpr int64_t kPartRows = 16 * kExactRows;

namespace kernels {

using Sums = float* __restrict__;
using Rows = const float* __restrict__;
using Channels = const float* __restrict__;

POPTORCH_EMU_FOR_EACH_CPU void add(int64_t rows, int64_t channels, Sums sums, Rows x) {
  for (int64_t row = 0; row < rows; ++row, x += channels) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += x[c];
  }
}

POPTORCH_EMU_FOR_EACH_CPU void add_squares(int64_t rows, int64_t channels, Sums sums, Rows x,
                                           Channels mean) {
  for (int64_t row = 0; row < rows; ++row, x += channels) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += (x[c] - mean[c]) * (x[c] - mean[c]);
  }
}

POPTORCH_EMU_FOR_EACH_CPU void add_gradients(int64_t rows, int64_t channels, Sums sums,
                                             Sums products, Rows dy, Rows x, Channels mean) {
  for (int64_t row = 0; row < rows; ++row, dy += channels, x += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      sums[c] += dy[c];
      products[c] += dy[c] * (x[c] - mean[c]);
    }
  }
}

POPTORCH_EMU_FOR_EACH_CPU void normalise(int64_t rows, int64_t channels, float* __restrict__ y,
                                         Rows x, Channels scale, Channels shift) {
  for (int64_t row = 0; row < rows; ++row, y += channels, x += channels) {
    for (int64_t c = 0; c < channels; ++c) y[c] = x[c] * scale[c] + shift[c];
  }
}

POPTORCH_EMU_FOR_EACH_CPU void differentiate(int64_t rows, int64_t channels, float* __restrict__ dx,
                                             Rows dy, Rows x, Channels mean, Channels mean_dy,
                                             Channels slope, Channels scale) {
  for (int64_t row = 0; row < rows; ++row, dx += channels, dy += channels, x += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      dx[c] = (dy[c] - mean_dy[c] - (x[c] - mean[c]) * slope[c]) * scale[c];
    }
  }
}

}  // namespace kernels

// Images as a matrix with one row for each pixel of each image.
struct Matrix {
  explicit Matrix(const Tensor& image)
      : values(image), channels(image.size(1)), rows(image.numel() / channels) {}

  const float* row(int64_t index) const {
    return values.const_data_ptr<float>() + index * channels;
  }

  const Tensor values;
  const int64_t channels;
  const int64_t rows;
};

Tensor laid_out(const Tensor& image) { return image.contiguous(at::MemoryFormat::ChannelsLast); }

// Calls `run(first row, number of rows)` for each part of the rows.
template <class Run>
void for_each_part(int64_t num_rows, const Run& run) {
  share_out((num_rows + kPartRows - 1) / kPartRows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      run(part * kPartRows, std::min(kPartRows, num_rows - part * kPartRows));
    }
  });
}

// Adds up `width` numbers over all rows in a fixed order. `add(first row, number of rows, sums)`
// adds some rows to single-precision sums.
template <class Add>
std::vector<double> sums_over(int64_t num_rows, int64_t width, const Add& add) {
  const int64_t num_parts = (num_rows + kPartRows - 1) / kPartRows;
  std::vector<double> of_parts(num_parts * width);
  for_each_part(num_rows, [&](int64_t first, int64_t count) {
    double* const total = of_parts.data() + first / kPartRows * width;
    std::vector<float> sums(width);
    for (int64_t row = first; row < first + count; row += kExactRows) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      add(row, std::min(kExactRows, first + count - row), sums.data());
      for (int64_t c = 0; c < width; ++c) total[c] += sums[c];
    }
  });
  for (int64_t part = 1; part < num_parts; ++part) {
    for (int64_t c = 0; c < width; ++c) of_parts[c] += of_parts[part * width + c];
  }
  of_parts.resize(width);
  return of_parts;
}

void check(const Tensor& image, const char* name) {
  TORCH_CHECK(image.dim() == 4 && image.scalar_type() == at::kFloat && image.numel() > 0, name,
              " takes images of float32, not ", image.scalar_type(), image.sizes(), ".");
}

// Returns the value of a channel, or `otherwise` if there is no tensor.
float value_of(const OptionalTensor& of_channels, int64_t channel, float otherwise) {
  return of_channels ? of_channels->const_data_ptr<float>()[channel] : otherwise;
}

OptionalTensor dense(const OptionalTensor& of_channels) {
  return of_channels ? OptionalTensor(of_channels->to(at::kFloat).contiguous()) : std::nullopt;
}

using Normalised = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Accepts and returns the same as `aten::_native_batch_norm_legit_functional`.
Normalised batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, bool training,
                      double momentum, double eps) {
  check(input, "poptorch_emu::image_batch_norm");
  TORCH_CHECK(training, "poptorch_emu::image_batch_norm is for training.");
  const Matrix x(laid_out(input));
  const auto options = input.options();
  const auto new_channels = [&] { return at::empty({x.channels}, options); };
  const Tensor mean = new_channels(), invstd = new_channels();
  float* const means = mean.mutable_data_ptr<float>();
  const auto sums = sums_over(x.rows, x.channels, [&](int64_t row, int64_t count, float* to) {
    kernels::add(count, x.channels, to, x.row(row));
  });
  for (int64_t c = 0; c < x.channels; ++c) means[c] = static_cast<float>(sums[c] / x.rows);
  const auto squares = sums_over(x.rows, x.channels, [&](int64_t row, int64_t count, float* to) {
    kernels::add_squares(count, x.channels, to, x.row(row), means);
  });

  const Tensor new_mean = running_mean.clone(), new_var = running_var.clone();
  const OptionalTensor weights = dense(weight), biases = dense(bias);
  std::vector<float> scale(x.channels), shift(x.channels);
  for (int64_t c = 0; c < x.channels; ++c) {
    const auto inverse = static_cast<float>(1.0 / std::sqrt(squares[c] / x.rows + eps));
    invstd.mutable_data_ptr<float>()[c] = inverse;
    scale[c] = inverse * value_of(weights, c, 1.0f);
    shift[c] = value_of(biases, c, 0.0f) - means[c] * scale[c];
    const auto moved = [&](float from, double to) {
      return static_cast<float>(momentum * to + (1.0 - momentum) * from);
    };
    float& kept_mean = new_mean.mutable_data_ptr<float>()[c];
    float& kept_var = new_var.mutable_data_ptr<float>()[c];
    kept_mean = moved(kept_mean, means[c]);
    kept_var = moved(kept_var, squares[c] / (x.rows - 1));
  }

  const Tensor output = at::empty_like(x.values);
  float* const y = output.mutable_data_ptr<float>();
  for_each_part(x.rows, [&](int64_t row, int64_t count) {
    kernels::normalise(count, x.channels, y + row * x.channels, x.row(row), scale.data(),
                       shift.data());
  });
  return {output, mean, invstd, new_mean, new_var};
}

// Accepts and returns the same as `aten::native_batch_norm_backward`.
std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(
    const Tensor& grad_out, const Tensor& input, const OptionalTensor& weight,
    const OptionalTensor& /*running_mean*/, const OptionalTensor& /*running_var*/,
    const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool train, double /*eps*/,
    std::array<bool, 3> output_mask) {
  check(input, "poptorch_emu::image_batch_norm_backward");
  TORCH_CHECK(
      train && save_mean && save_invstd,
      "poptorch_emu::image_batch_norm_backward is for training, and takes mean and deviation.");
  const Matrix x(laid_out(input)), dy(laid_out(grad_out));
  const int64_t channels = x.channels;
  const Tensor mean = save_mean->contiguous(), invstd = save_invstd->contiguous();
  const float* const means = mean.const_data_ptr<float>();
  const auto sums = sums_over(x.rows, 2 * channels, [&](int64_t row, int64_t count, float* to) {
    kernels::add_gradients(count, channels, to, to + channels, dy.row(row), x.row(row), means);
  });

  const Tensor grad_weight = at::empty({channels}, input.options());
  const Tensor grad_bias = at::empty({channels}, input.options());
  const OptionalTensor weights = dense(weight);
  std::vector<float> mean_dy(channels), slope(channels), scale(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = invstd.const_data_ptr<float>()[c];
    grad_bias.mutable_data_ptr<float>()[c] = static_cast<float>(sums[c]);
    grad_weight.mutable_data_ptr<float>()[c] = static_cast<float>(sums[channels + c] * inverse);
    mean_dy[c] = static_cast<float>(sums[c] / x.rows);
    slope[c] = static_cast<float>(sums[channels + c] * inverse * inverse / x.rows);
    scale[c] = static_cast<float>(inverse) * value_of(weights, c, 1.0f);
  }

  Tensor grad_input;
  if (output_mask[0]) {
    grad_input = at::empty_like(x.values);
    float* const dx = grad_input.mutable_data_ptr<float>();
    for_each_part(x.rows, [&](int64_t row, int64_t count) {
      kernels::differentiate(count, channels, dx + row * channels, dy.row(row), x.row(row), means,
                             mean_dy.data(), slope.data(), scale.data());
    });
  }
  return {grad_input, output_mask[1] ? grad_weight : Tensor(),
          output_mask[2] ? grad_bias : Tensor()};
}

}  // namespace
}  // namespace poptorch_emu::image

#pragma GCC pop_options

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "image_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor "
      "running_var, bool training, float momentum, float eps) -> (Tensor output, Tensor mean, "
      "Tensor invstd, Tensor new_mean, Tensor new_var)");
  m.def(
      "image_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? "
      "running_mean, "
      "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] "
      "output_mask) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("image_batch_norm", poptorch_emu::image::batch_norm);
  m.impl("image_batch_norm_backward", poptorch_emu::image::batch_norm_backward);
}
