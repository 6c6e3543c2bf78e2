// Operator for max pooling of channels-last images.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>

#include "common/sharing.h"
#include "numerics/channels_last.h"
#include "numerics/max_pool.h"

namespace poptorch_emu::pooling {
namespace {

using at::Tensor;

// Writes the maxima of channels-last images, and their positions unless `indices` is null.
void take_maxima(const MaxPool& pool, const Tensor& images, float* maxima, int64_t* indices) {
  constexpr int64_t kFewestReads = int64_t{1} << 16;
  const int64_t channels = images.size(1), size = images.size(2) * images.size(3) * channels;
  const int64_t grain = kFewestReads / (pool.num_reads() * channels) + 1;
  const auto* const values = images.const_data_ptr<float>();
  const int64_t of_row = pool.width() * channels;
  share_out(images.size(0), grain, [&](int64_t begin, int64_t end) {
    int64_t to = begin * pool.height() * of_row;
    for (int64_t image = begin; image < end; ++image) {
      for (int64_t row = 0; row < pool.height(); ++row, to += of_row) {
        pool.take_row(values + image * size, channels, row, maxima + to,
                      indices == nullptr ? nullptr : indices + to);
      }
    }
  });
}

void check(const Tensor& image, const char* name) {
  TORCH_CHECK(image.dim() == 4 && image.scalar_type() == at::kFloat, name,
              " takes images of float32, not ", image.scalar_type(), image.sizes(), ".");
}

Tensor empty_result(const Tensor& images, const MaxPool& pool, at::ScalarType type) {
  return at::empty({images.size(0), images.size(1), pool.height(), pool.width()},
                   images.options().dtype(type).memory_format(at::MemoryFormat::ChannelsLast));
}

// Accepts the arguments of `aten::max_pool2d_with_indices` and returns its first result.
Tensor max_pool(const Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  check(input, "poptorch_emu::image_max_pool");
  const MaxPool pool(input, kernel_size, stride, padding, dilation, ceil_mode);
  const Tensor output = empty_result(input, pool, at::kFloat);
  take_maxima(pool, channels_last(input), output.mutable_data_ptr<float>(), nullptr);
  return output;
}

// Returns both results of `aten::max_pool2d_with_indices`.
std::tuple<Tensor, Tensor> max_pool_with_indices(const Tensor& input, at::IntArrayRef kernel_size,
                                                 at::IntArrayRef stride, at::IntArrayRef padding,
                                                 at::IntArrayRef dilation, bool ceil_mode) {
  check(input, "poptorch_emu::image_max_pool_with_indices");
  const MaxPool pool(input, kernel_size, stride, padding, dilation, ceil_mode);
  const Tensor output = empty_result(input, pool, at::kFloat);
  const Tensor indices = empty_result(input, pool, at::kLong);
  take_maxima(pool, channels_last(input), output.mutable_data_ptr<float>(),
              indices.mutable_data_ptr<int64_t>());
  return {output, indices};
}

}  // namespace
}  // namespace poptorch_emu::pooling

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "image_max_pool(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] "
      "dilation=1, bool ceil_mode=False) -> Tensor");
  m.def(
      "image_max_pool_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] "
      "padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("image_max_pool", poptorch_emu::pooling::max_pool);
  m.impl("image_max_pool_with_indices", poptorch_emu::pooling::max_pool_with_indices);
}
