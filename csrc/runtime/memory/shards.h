#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// The replicas of this process among those of all processes, which are numbered process by process.
struct Replicas {
  int64_t here = 1;   // number of replicas in this process
  int64_t first = 0;  // index of this process's first replica among all
  int64_t all = 1;
};

// Replicated tensor sharding: `count` replicas together hold one tensor, and replica `index` holds
// part `index` of its elements in row-major order. All parts have the same length; the last ones
// are padded with zeros.

// Returns the number of elements of one part.
int64_t shard_length(int64_t num_elements, int64_t count);
// Returns a part of `whole` as a 1-d tensor, which may share its storage.
at::Tensor shard_of(const at::Tensor& whole, int64_t index, int64_t count);
// Copies a part without its padding into `whole`, which is contiguous.
void put_shard(at::Tensor& whole, int64_t index, int64_t count, const at::Tensor& shard);
// Returns a new tensor of shape `sizes` whose parts are `shards`.
at::Tensor gathered(const std::vector<at::Tensor>& shards, at::IntArrayRef sizes);
// Adds up the replicas' values for part `index` in the order of a ring: first those of the next
// replica, last those of replica `index` itself.
at::Tensor ring_sum(const std::vector<at::Tensor>& parts, int64_t index);
// Returns the ring sum of each part of the replicas' whole tensors.
std::vector<at::Tensor> ring_sums(const std::vector<at::Tensor>& wholes);

// Shape and strides of a tensor.
struct Layout {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// Returns `tensor`, or a copy without gaps if its memory has gaps.
at::Tensor dense_copy_unless_dense(const at::Tensor& tensor);
Layout layout_of(const at::Tensor& dense);
// Returns the elements of `dense` as a 1-d tensor, in the order of its memory.
at::Tensor in_memory_order(const at::Tensor& dense);
// Returns a new tensor whose parts in the order of its memory are `shards`.
at::Tensor laid_out(const std::vector<at::Tensor>& shards, const Layout& layout);

}  // namespace poptorch_emu
