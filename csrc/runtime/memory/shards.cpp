#include "runtime/memory/shards.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/accumulate.h>

#include <algorithm>

namespace poptorch_emu {
namespace {

// Returns the elements of a part without its padding.
at::Tensor unpadded_part(const at::Tensor& flat, int64_t index, int64_t count) {
  const int64_t length = shard_length(flat.numel(), count);
  const int64_t begin = std::min(index * length, flat.numel());
  return flat.narrow(0, begin, std::min(length, flat.numel() - begin));
}

}  // namespace

int64_t shard_length(int64_t num_elements, int64_t count) {
  return (num_elements + count - 1) / count;
}

at::Tensor shard_of(const at::Tensor& whole, int64_t index, int64_t count) {
  at::Tensor part = unpadded_part(whole.reshape({-1}), index, count);
  const int64_t missing = shard_length(whole.numel(), count) - part.numel();
  return missing == 0 ? part : at::constant_pad_nd(part, {0, missing}, 0);
}

void put_shard(at::Tensor& whole, int64_t index, int64_t count, const at::Tensor& shard) {
  at::Tensor part = unpadded_part(whole.view({-1}), index, count);
  part.copy_(shard.narrow(0, 0, part.numel()));
}

at::Tensor gathered(const std::vector<at::Tensor>& shards, at::IntArrayRef sizes) {
  return at::cat(shards).narrow(0, 0, c10::multiply_integers(sizes)).reshape(sizes);
}

at::Tensor ring_sum(const std::vector<at::Tensor>& parts, int64_t index) {
  const int64_t count = static_cast<int64_t>(parts.size());
  at::Tensor sum = parts[(index + 1) % count].clone();
  for (int64_t step = 2; step <= count; ++step) sum.add_(parts[(index + step) % count]);
  return sum;
}

std::vector<at::Tensor> ring_sums(const std::vector<at::Tensor>& wholes) {
  const auto count = static_cast<int64_t>(wholes.size());
  std::vector<at::Tensor> sums;
  for (int64_t index = 0; index < count; ++index) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& whole : wholes) parts.push_back(shard_of(whole, index, count));
    sums.push_back(ring_sum(parts, index));
  }
  return sums;
}

at::Tensor dense_copy_unless_dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : tensor.clone();
}

Layout layout_of(const at::Tensor& dense) { return {dense.sizes().vec(), dense.strides().vec()}; }

at::Tensor in_memory_order(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

at::Tensor laid_out(const std::vector<at::Tensor>& shards, const Layout& layout) {
  return at::cat(shards).as_strided(layout.sizes, layout.strides);
}

}  // namespace poptorch_emu
