#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/network/peers.h"

namespace poptorch_emu {

// Adds up tensors over the replicas of all processes, with the bits that one process with all of
// them gets: of N replicas, numbered process by process, part k of a tensor (in row-major order) is
// the sum of the values of replicas k+1, k+2, ..., N-1, 0, ..., k, added in this order.
//
// A running sum goes around the ring of processes, each of which adds what its replicas have; then
// the sums go around. The parts that end in one process are its block. It travels in packets: while
// one is added, the next ones arrive.
class Ring {
 public:
  // `model` tells the messages of different models apart; the same in every process.
  Ring(const std::string& group_name, int64_t model, std::chrono::milliseconds timeout);

  // What the replicas of this process have of one tensor: contiguous, of equal shape and type.
  using Summands = std::vector<at::Tensor>;

  // Makes the first summand of each tensor its sum, and the others anything: sums are added and
  // sent where they are. All processes call this with the same `number` and equal shapes, in the
  // same order. Throws `Error` when another process fails.
  void all_reduce(int64_t number, const std::vector<Summands>& tensors);
  // The same, but of the first summand only the parts of this process's replicas are sums; the rest
  // is anything.
  void reduce_scatter(int64_t number, const std::vector<Summands>& tensors);
  // Fills contiguous tensors, of which each process has the parts of its replicas.
  void all_gather(int64_t number, const std::vector<at::Tensor>& tensors,
                  int64_t replicas_per_process);

  Peers& peers() { return peers_; }
  // Seconds spent in all these since the beginning.
  double seconds() const { return seconds_; }

 private:
  // The elements [begin, end) of a tensor.
  struct Range {
    size_t tensor;
    int64_t begin;
    int64_t end;
  };
  // One message: a range, sent from where it is, or small ones side by side in a buffer.
  struct Packet {
    std::vector<Range> ranges;
  };
  // What ends in one process. The parts of its last replica begin in the next process; the sums of
  // the others have begun when they come there.
  struct Block {
    std::vector<Packet> begun;
    std::vector<Packet> others;
  };
  // A packet of the block that the process `step` steps before owns.
  struct Arrival {
    const Packet* packet;
    int64_t step;
    bool is_last_part;
  };
  // A packet that is sent or received.
  struct Transfer {
    at::Tensor buffer;  // undefined if it is sent from where it is, or goes where it stays
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

  // Calls `use(arrival, buffer)` for each in turn; some of the next ones are under way meanwhile.
  template <typename Use>
  void receive_all(const std::vector<Arrival>& arrivals, bool may_stay, const Use& use);
  Transfer receive(const Packet& packet, bool may_stay);
  void send(const Packet& packet, int64_t local);
  void finish_sending();

  Peers peers_;
  const int64_t model_;
  const int64_t process_;
  const int64_t num_processes_;
  // Of this exchange.
  const std::vector<Summands>* tensors_ = nullptr;
  int64_t num_local_ = 1;  // replicas of each process
  int64_t tag_ = 0;
  std::vector<Block> blocks_;  // by the process that owns them
  std::vector<Transfer> sending_;
  // Free ones, kept for the next packets.
  std::vector<at::Tensor> buffers_;
  double seconds_ = 0;
};

}  // namespace poptorch_emu
