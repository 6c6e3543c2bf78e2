// A convolution with few channels for inference, and the max pooling after it, by one of two
// kernels: `numerics/direct_convolution.h`, or oneDNN's.
//
// oneDNN is fastest here when it writes blocks of 16 channels. PyTorch offers this layout only in
// opaque oneDNN tensors, whose memory this operator reads directly. The pooled result is much
// smaller and is written in PyTorch's order. No interface reports the layout of such a tensor, so
// that it is tested once for each size, with and without a bias.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <vector>

#include "common/for_each_cpu.h"
#include "common/sharing.h"
#include "numerics/direct_convolution.h"
#include "numerics/max_pool.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu::pooled_convolution {
namespace {

using at::Tensor;

constexpr int64_t kBlock = 16;

struct Convolution {
  at::IntArrayRef stride, padding, dilation;

  // Returns the result as a oneDNN tensor.
  Tensor operator()(const Tensor& images, const Tensor& weight,
                    const std::optional<Tensor>& bias) const {
    return at::mkldnn_convolution(images.to_mkldnn(), weight, bias, padding, stride, dilation,
                                  /*groups=*/1);
  }
};

struct Pooling {
  at::IntArrayRef kernel, stride, padding, dilation;
  bool ceil_mode;
};

// Calls an operator of PyTorch's for oneDNN tensors that returns a number.
int64_t ask(const char* name, const Tensor& x) {
  const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  return found.typed<int64_t(const Tensor&)>().call(x);
}

const float* numbers_of(const Tensor& x) {
  return reinterpret_cast<const float*>(ask("mkldnn::data_ptr", x));
}

int64_t num_blocks(int64_t channels) { return (channels + kBlock - 1) / kBlock; }

// Returns whether a oneDNN tensor has the numbers of `plain` as (N, blocks, H, W, 16).
bool has_blocks_of(const Tensor& x, const Tensor& plain) {
  const int64_t channels = x.size(1), num_places = x.size(2) * x.size(3);
  const int64_t of_image = num_blocks(channels) * num_places * kBlock;
  if (ask("mkldnn::_nbytes", x) != x.size(0) * of_image * static_cast<int64_t>(sizeof(float))) {
    return false;
  }
  const float *blocks = numbers_of(x), *next = plain.const_data_ptr<float>();
  for (int64_t image = 0; image < x.size(0); ++image, blocks += of_image) {
    for (int64_t channel = 0; channel < channels; ++channel) {
      const float* at = blocks + channel / kBlock * num_places * kBlock + channel % kBlock;
      for (int64_t place = 0; place < num_places; ++place, at += kBlock, ++next) {
        if (*at != *next) return false;
      }
    }
  }
  return true;
}

// Returns different numbers at different positions, up to a period, to recognise a layout.
Tensor numbers_like(const Tensor& x, int64_t period) {
  return at::arange(x.numel(), x.options()).remainder_(period).view(x.sizes()).add_(1);
}

// Returns whether oneDNN writes blocks for these sizes. Each thread tests this itself, so that a
// forked process does not wait for a lock.
bool writes_blocks(const Convolution& convolution, const Tensor& images, const Tensor& weight,
                   const std::optional<Tensor>& bias) {
  thread_local std::map<std::vector<int64_t>, bool> known;
  const auto precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  std::vector<int64_t> sizes{at::get_num_threads(), bias.has_value(),
                             static_cast<int64_t>(precision)};
  for (const at::IntArrayRef each : {images.sizes(), weight.sizes(), convolution.stride,
                                     convolution.padding, convolution.dilation}) {
    sizes.insert(sizes.end(), each.begin(), each.end());
  }
  if (const auto found = known.find(sizes); found != known.end()) return found->second;
  const auto no_bias = bias ? std::optional(at::zeros_like(*bias)) : std::nullopt;
  const Tensor tried = convolution(numbers_like(images, 251), numbers_like(weight, 17), no_bias);
  return known[sizes] = has_blocks_of(tried, tried.to_dense().contiguous());
}

// Writes maxima (width, 16) as a row for each of the first channels. The ReLU keeps NaN.
POPTORCH_EMU_FOR_EACH_CPU void write_channels(float* maxima, bool has_relu, int64_t channels,
                                              int64_t width, int64_t channel_step, float* to) {
  if (has_relu) {
    for (int64_t i = 0; i < width * kBlock; ++i) maxima[i] = maxima[i] < 0.0f ? 0.0f : maxima[i];
  }
  for (int64_t channel = 0; channel < channels; ++channel, to += channel_step) {
    for (int64_t x = 0; x < width; ++x) to[x] = maxima[x * kBlock + channel];
  }
}

// Pools the blocked images of a convolution to `to` (N, channels, height, width).
void pool_blocks(const MaxPool& pool, const Tensor& images, bool has_relu, float* to) {
  constexpr int64_t kFewestReads = int64_t{1} << 16;
  const int64_t channels = images.size(1), channel_step = pool.height() * pool.width();
  const int64_t of_block = images.size(2) * images.size(3) * kBlock;
  const int64_t blocks = num_blocks(channels);
  const float* const from = numbers_of(images);
  const int64_t grain = kFewestReads / (pool.num_reads() * channels) + 1;
  share_out(images.size(0), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> maxima(pool.width() * kBlock);
    for (int64_t number = begin * blocks; number < end * blocks; ++number) {
      const int64_t channel = number % blocks * kBlock;
      float* place = to + (number / blocks * channels + channel) * channel_step;
      for (int64_t row = 0; row < pool.height(); ++row, place += pool.width()) {
        pool.take_row(from + number * of_block, kBlock, row, maxima.data(), nullptr);
        write_channels(maxima.data(), has_relu, std::min(channels - channel, kBlock), pool.width(),
                       channel_step, place);
      }
    }
  });
}

void pool_plain(const Pooling& pooling, const Tensor& images, bool has_relu, Tensor& to) {
  const auto& [kernel, stride, padding, dilation, ceil_mode] = pooling;
  to.copy_(std::get<0>(at::max_pool2d_with_indices(images.to_dense(), kernel, stride, padding,
                                                   dilation, ceil_mode)));
  if (has_relu) to.relu_();
}

// Returns how many images are convolved at once, because the results of all images would exceed the
// caches. The limit of 4 MiB, a core's share of the last-level cache, is assumed.
int64_t images_at_once(const Tensor& images, int64_t channels) {
  constexpr int64_t kMostBytes = int64_t{4} << 20;
  const int64_t num_places = images.size(2) * images.size(3);
  const int64_t num_bytes = num_blocks(channels) * kBlock * num_places * sizeof(float);
  return std::max<int64_t>(kMostBytes / num_bytes, 1);
}

Tensor run(const Convolution& convolution, const Tensor& images, const Tensor& weight,
           const std::optional<Tensor>& bias, const Pooling& pooling, bool has_relu) {
  const int64_t at_once = images_at_once(images, weight.size(0));
  Tensor result;
  for (int64_t first = 0; first < images.size(0); first += at_once) {
    const Tensor part = images.slice(0, first, first + at_once);
    const bool are_blocks = writes_blocks(convolution, part, weight, bias);
    const Tensor convolved = convolution(part, weight, bias);
    const MaxPool pool(convolved, pooling.kernel, pooling.stride, pooling.padding, pooling.dilation,
                       pooling.ceil_mode);
    if (!result.defined()) {
      result = at::empty({images.size(0), weight.size(0), pool.height(), pool.width()},
                         images.options());
    }
    Tensor to = result.narrow(0, first, part.size(0));
    if (are_blocks) {
      pool_blocks(pool, convolved, has_relu, to.mutable_data_ptr<float>());
    } else {
      pool_plain(pooling, convolved, has_relu, to);
    }
  }
  return result;
}

// Computes the same by our own kernel.
Tensor run_directly(const Convolution& convolution, const Tensor& images, const Tensor& weight,
                    const std::optional<Tensor>& bias, const Pooling& pooling, bool has_relu) {
  TORCH_CHECK(DirectConvolution::is_for(convolution.stride),
              "The direct kernel of poptorch_emu::pooled_convolution needs AVX2 and strides of 1, "
              "but got ",
              convolution.stride, ".");
  const auto& [stride, padding, dilation] = convolution;
  const Tensor convolved = at::convolution(images.to(at::kMeta), weight.to(at::kMeta), {}, stride,
                                           padding, dilation, false, {0, 0}, 1);
  const MaxPool pool(convolved, pooling.kernel, pooling.stride, pooling.padding, pooling.dilation,
                     pooling.ceil_mode);
  const std::optional<Tensor> biases = bias ? std::optional(bias->contiguous()) : std::nullopt;
  const DirectConvolution direct(images, weight, biases, padding, dilation, pool, has_relu);
  Tensor result =
      at::empty({images.size(0), weight.size(0), pool.height(), pool.width()}, images.options());
  const float* const from = images.const_data_ptr<float>();
  float* const to = result.mutable_data_ptr<float>();
  // Below this number of multiplications a second thread costs more time than it saves.
  constexpr int64_t kFewestMultiplications = int64_t{1} << 20;
  const int64_t of_image = weight.numel() * convolved.size(2) * convolved.size(3);
  share_out(images.size(0), kFewestMultiplications / of_image + 1, [&](int64_t begin, int64_t end) {
    direct.run(from + begin * images.stride(0), end - begin, to + begin * result.stride(0));
  });
  return result;
}

void check(const Tensor& input, const Tensor& weight) {
  const bool has_types = input.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat;
  TORCH_CHECK(has_types && input.dim() == 4 && weight.dim() == 4 && input.numel() > 0,
              "poptorch_emu::pooled_convolution takes images and a weight of float32, not ",
              input.scalar_type(), input.sizes(), " and ", weight.scalar_type(), weight.sizes(),
              ".");
}

// Computes a convolution, a max pooling and optionally a ReLU, by our own kernel if `is_direct`;
// the result is contiguous.
Tensor pooled_convolution(const Tensor& input, const Tensor& weight,
                          const std::optional<Tensor>& bias, at::IntArrayRef stride,
                          at::IntArrayRef padding, at::IntArrayRef dilation,
                          at::IntArrayRef pool_kernel, at::IntArrayRef pool_stride,
                          at::IntArrayRef pool_padding, at::IntArrayRef pool_dilation,
                          bool ceil_mode, bool has_relu, bool is_direct) {
  check(input, weight);
  return (is_direct ? run_directly : run)(
      {stride, padding, dilation}, input.contiguous(), weight.contiguous(), bias,
      {pool_kernel, pool_stride, pool_padding, pool_dilation, ceil_mode}, has_relu);
}

}  // namespace
}  // namespace poptorch_emu::pooled_convolution

#pragma GCC pop_options

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "pooled_convolution(Tensor input, Tensor weight, Tensor? bias, int[2] stride, int[2] "
      "padding, int[2] dilation, int[2] pool_kernel, int[2] pool_stride, int[2] pool_padding, "
      "int[2] pool_dilation, bool ceil_mode, bool has_relu, bool is_direct) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("pooled_convolution", poptorch_emu::pooled_convolution::pooled_convolution);
}
