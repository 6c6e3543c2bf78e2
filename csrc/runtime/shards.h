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

}  // namespace poptorch_emu
