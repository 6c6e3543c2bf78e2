#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/network/peers.h"

namespace poptorch_emu {

// Sums tensors over the replicas of all processes, with the bits that a single process would
// compute. N replicas are numbered process by process. Part k of a tensor (in row-major order) is
// the sum of the values of replicas k+1, k+2, ..., N-1, 0, ..., k, added in this order.
//
// A running sum travels around the ring of processes, and each process adds the values of its
// replicas; then the sums travel around. The parts whose sums end in one process form its block. A
// block travels in packets: while one is added, the next ones arrive.
class Ring {
 public:
  // `model` distinguishes the messages of different models; it is the same in every process.
  Ring(const std::string& group_name, int64_t model, std::chrono::milliseconds timeout);

  // The values of this process's replicas for one tensor: contiguous, with equal shapes and types.
  using Summands = std::vector<at::Tensor>;

  // Replaces the first summand of each tensor by the sum. The others are overwritten, because sums
  // are added and sent in place. All processes call this with the same `number` and equal shapes,
  // in the same order. Throws `Error` when another process fails.
  void all_reduce(int64_t number, const std::vector<Summands>& tensors);
  // Same as `all_reduce`, but only the parts of this process's replicas in the first summand are
  // sums; the rest is undefined.
  void reduce_scatter(int64_t number, const std::vector<Summands>& tensors);
  // Fills contiguous tensors, of which each process has the parts of its replicas.
  void all_gather(int64_t number, const std::vector<at::Tensor>& tensors,
                  int64_t replicas_per_process);

  Peers& peers() { return peers_; }
  // Returns the seconds spent in all exchanges since the beginning.
  double seconds() const { return seconds_; }

 private:
  // The elements [begin, end) of a tensor.
  struct Range {
    size_t tensor;
    int64_t begin;
    int64_t end;
  };
  // One message: a range that is sent in place, or small ranges side by side in a buffer.
  struct Packet {
    std::vector<Range> ranges;
  };
  // The parts whose sums end in one process. Sums for its last replica begin in the next process;
  // the other sums have already begun when they arrive there.
  struct Block {
    std::vector<Packet> begun;
    std::vector<Packet> others;
  };
  // A packet of the block of the process that is `step` steps before this one.
  struct Arrival {
    const Packet* packet;
    int64_t step;
    bool is_last_part;
  };
  // A packet that is sent or received.
  struct Transfer {
    at::Tensor buffer;  // undefined if the packet is sent or received in place
    Peers::MessagePtr message;
  };

  int64_t part_begin(size_t tensor, int64_t replica) const;
  std::vector<Packet> packets_of(int64_t first_replica, int64_t last_replica) const;
  int64_t num_bytes_of(const Packet& packet) const;
  const Block& block(int64_t steps_before) const;
  at::Tensor place(const Range& range, int64_t local) const;
  at::Tensor take_buffer();

  void begin(int64_t number, const std::vector<Summands>& tensors, int64_t num_local);
  void scatter_sums();
  void begin_own(const Packet& packet);
  void add_passing(const Packet& packet, const at::Tensor* arrived);
  void finish_own(const Packet& packet, const at::Tensor& arrived, bool is_last_part);
  void gather_blocks();
  void store(const Packet& packet, const at::Tensor& arrived);

  // Calls `use(arrival, buffer)` for each arrival in order, while the next ones are received.
  template <typename Use>
  void receive_all(const std::vector<Arrival>& arrivals, bool may_stay, const Use& use);
  Transfer receive(const Packet& packet, bool may_stay);
  void send(const Packet& packet, int64_t local);
  void finish_sending();

  Peers peers_;
  const int64_t model_;
  const int64_t process_;
  const int64_t num_processes_;
  // State of the current exchange.
  const std::vector<Summands>* tensors_ = nullptr;
  int64_t num_local_ = 1;  // replicas of each process
  int64_t tag_ = 0;
  std::vector<Block> blocks_;  // indexed by the process that owns them
  std::vector<Transfer> sending_;
  // Free buffers for the next packets.
  std::vector<at::Tensor> buffers_;
  double seconds_ = 0;
};

}  // namespace poptorch_emu
