#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace poptorch_emu {

// Replicated tensor sharding: `count` replicas hold one tensor together, replica `index` the
// `index`-th part of its elements in row-major order. All parts have the same length; the last ones
// are filled up with zeros.

// Elements of one part.
int64_t shard_length(int64_t num_elements, int64_t count);
// A part of `whole` as a tensor with one dimension; may share its storage.
at::Tensor shard_of(const at::Tensor& whole, int64_t index, int64_t count);
// Copies a part, without its filling, into `whole`, which is contiguous.
void put_shard(at::Tensor& whole, int64_t index, int64_t count, const at::Tensor& shard);
// The tensor of shape `sizes` whose parts are `shards`; a fresh copy.
at::Tensor gathered(const std::vector<at::Tensor>& shards, at::IntArrayRef sizes);

// How the elements of a tensor lie in its memory.
struct Layout {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// `tensor`, or a copy of it whose elements lie side by side in memory.
at::Tensor dense_copy_unless_dense(const at::Tensor& tensor);
Layout layout_of(const at::Tensor& dense);
// The elements of `dense` as a tensor with one dimension, in the order of its memory.
at::Tensor in_memory_order(const at::Tensor& dense);
// The tensor whose parts in this order are `shards`; a fresh copy.
at::Tensor laid_out(const std::vector<at::Tensor>& shards, const Layout& layout);

}  // namespace poptorch_emu
