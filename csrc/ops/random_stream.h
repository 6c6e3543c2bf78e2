#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <tuple>

#include "common/sharing.h"
#include "numerics/philox.h"

namespace poptorch_emu {

// The random numbers of one operation in one micro-batch of one replica: a pure function from the
// index of a block to four words.
class RandomStream {
 public:
  // `rng` holds {seed, micro-batch counter, replica, 0} as int64 on the CPU.
  RandomStream(const at::Tensor& rng, int64_t op_id) {
    TORCH_CHECK_VALUE(rng.numel() == 4 && rng.scalar_type() == at::kLong && rng.is_contiguous(),
                      "rng is ", rng.scalar_type(), rng.sizes(), "; expected int64[4] with {seed, ",
                      "micro-batch, replica, 0}.");
    const int64_t* state = rng.const_data_ptr<int64_t>();
    const auto seed = static_cast<uint64_t>(state[0]);
    const auto micro_batch = static_cast<uint64_t>(state[1]);
    const auto replica = static_cast<uint64_t>(state[2]);
    TORCH_CHECK_VALUE(replica <= kMaxReplica && micro_batch >> 48 == 0, "replica ", replica,
                      " and micro-batch ", micro_batch, " do not fit in 16 and 48 bits.");
    TORCH_CHECK_VALUE(op_id >= 0 && op_id <= UINT32_MAX, "op_id ", op_id,
                      " does not fit in 32 bits.");
    key_ = {low(seed), low(seed >> 32)};
    op_id_ = static_cast<uint32_t>(op_id);
    micro_batch_low_ = low(micro_batch);
    // The low 16 bits hold the replica, the high 16 bits the upper bits of the micro-batch.
    replica_and_high_ = low(replica | (micro_batch >> 32) << 16);
  }

  // Writes the words of consecutive blocks.
  void write(int64_t first_block, std::span<philox::Words> blocks) const {
    philox::write_words(
        {static_cast<uint32_t>(first_block), op_id_, micro_batch_low_, replica_and_high_}, key_,
        blocks);
  }

 private:
  static constexpr uint64_t kMaxReplica = UINT16_MAX;
  static uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }

  philox::Key key_;
  uint32_t op_id_;
  uint32_t micro_batch_low_;
  uint32_t replica_and_high_;
};

// Calls `consume(blocks, first, count)` for each batch of blocks with `kLanes` elements, on several
// threads. The words of the blocks belong to elements [first, first + count), in order.
template <int64_t kLanes, typename Consume>
void for_each_batch(const RandomStream& stream, int64_t numel, const Consume& consume) {
  // Minimum number of blocks for a thread; a block takes about 4 ns.
  constexpr int64_t kGrainBlocks = 4096;
  const int64_t num_blocks = (numel + kLanes - 1) / kLanes;
  TORCH_CHECK_VALUE(num_blocks <= UINT32_MAX, numel, " random numbers at once; at most ",
                    kLanes * UINT32_MAX, " can be drawn. Draw them in parts.");
  share_out(num_blocks, kGrainBlocks, [&](int64_t begin, int64_t end) {
    std::array<philox::Words, philox::kBatch> blocks;
    for (int64_t block = begin; block < end; block += philox::kBatch) {
      const int64_t count = std::min(philox::kBatch, end - block);
      stream.write(block, std::span(blocks).first(count));
      const int64_t first = block * kLanes;
      consume(blocks, first, std::min(count * kLanes, numel - first));
    }
  });
}

// Calls `consume(words, first, count)` for each block; as above.
template <int64_t kLanes, typename Consume>
void for_each_block(const RandomStream& stream, int64_t numel, const Consume& consume) {
  for_each_batch<kLanes>(stream, numel, [&](const auto& blocks, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) {
      consume(blocks[i / kLanes], first + i, std::min(kLanes, count - i));
    }
  });
}

// Fills a contiguous tensor; `draw` converts four words to as many elements as its array holds. A
// meta tensor stays unchanged, so that one kernel serves both CPU and Meta.
template <typename T, typename Draw>
at::Tensor fill(const at::Tensor& out, const at::Tensor& rng, int64_t op_id, const Draw& draw) {
  if (out.is_meta()) return out;
  constexpr int64_t kLanes = std::tuple_size_v<decltype(draw(philox::Words{}))>;
  T* data = out.mutable_data_ptr<T>();
  for_each_block<kLanes>(RandomStream(rng, op_id), out.numel(),
                         [&](const philox::Words& words, int64_t first, int64_t count) {
                           const auto values = draw(words);
                           for (int64_t i = 0; i < count; ++i) {
                             data[first + i] = static_cast<T>(values[i]);
                           }
                         });
  return out;
}

}  // namespace poptorch_emu
