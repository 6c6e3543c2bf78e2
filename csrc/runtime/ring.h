#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/peers.h"

namespace poptorch_emu {

// Adds up tensors over the replicas of all processes, with the bits that one process with all of
// them gets: of N replicas, numbered process by process, part k of a tensor (in row-major order) is
// the sum of the values of replicas k+1, k+2, ..., N-1, 0, ..., k, added in this order.
//
// A running sum goes around the ring of processes, each of which adds what its replicas have; then
// the sums go around. The parts that end in one process, its block, travel together.
class Ring {
 public:
  // `model` tells the messages of different models apart; the same in every process.
  Ring(const std::string& group_name, int64_t model, std::chrono::milliseconds timeout);

  // What the replicas of this process have of one tensor: contiguous, of equal shape and type.
  using Summands = std::vector<at::Tensor>;

  // Makes the first summand of each tensor its sum. All processes call this with the same `number`
  // and equal shapes, in the same order. Throws `Error` when another process fails.
  void all_reduce(int64_t number, const std::vector<Summands>& tensors);

  Peers& peers() { return peers_; }
  // Seconds spent in `all_reduce` since the beginning.
  double seconds() const { return seconds_; }

 private:
  // The elements [begin, end) of a tensor, at an offset of a message.
  struct Section {
    int64_t begin;
    int64_t end;
    int64_t offset_bytes;
  };
  // What of each tensor belongs to one block.
  struct Block {
    std::vector<Section> sections;
    int64_t num_bytes = 0;
  };

  Block block_of(int64_t process, const std::vector<Summands>& tensors) const;
  int64_t part_begin(const at::Tensor& tensor, int64_t replica) const;
  void provide_buffers(int64_t num_bytes);
  at::Tensor piece(int64_t buffer, const Section& section, const at::Tensor& like) const;
  void begin_own_block(const Block& block, const std::vector<Summands>& tensors);
  void add_passing_block(const Block& block, const std::vector<Summands>& tensors, int64_t buffer,
                         bool is_first);
  void finish_own_block(const Block& block, const std::vector<Summands>& tensors, int64_t buffer);
  void store(const Block& block, const std::vector<Summands>& tensors, int64_t buffer);
  void send(int64_t buffer, int64_t num_bytes);
  void receive(int64_t buffer, int64_t num_bytes);
  void finish_sending(int64_t buffer);
  void reduce_scatter(const std::vector<Block>& blocks, const std::vector<Summands>& tensors);
  void all_gather(const std::vector<Block>& blocks, const std::vector<Summands>& tensors);

  Peers peers_;
  const int64_t model_;
  const int64_t process_;
  const int64_t num_processes_;
  int64_t num_local_ = 1;  // replicas of each process
  int64_t tag_ = 0;        // of this all-reduce
  // Two that take turns: one is received into while the other is sent.
  at::Tensor buffers_[2];
  Peers::MessagePtr sending_[2];
  double seconds_ = 0;
};

}  // namespace poptorch_emu
