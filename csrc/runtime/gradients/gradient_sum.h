#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/gradients/replica_sum.h"
#include "runtime/memory/remote_traffic.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// One accumulator of a program: first a sum for each replica, then a sum for each group of
// replicas. In a sharded accumulator, each replica has a part of the sum over all replicas.
//
// Several threads may add to a sharded accumulator, or read rows. The scheduler begins a reduction
// after all replicas have added.
class GradientSum {
 public:
  // `ring` connects to the replicas of other processes; null if there are none.
  GradientSum(const Program& program, AccumulatorId id, const Replicas& replicas, int64_t num_lanes,
              RemoteTraffic& remote, Ring* ring);

  // Returns a replica's own sum; `ReplicaSum` says how to add to it.
  ReplicaSum& of(int64_t replica) { return sums_[replica]; }
  const ReplicaSum& of(int64_t replica) const { return sums_[replica]; }

  // Adds to the replica's sum by its `add`. The last replica to arrive sums the contributions to a
  // sharded accumulator over all replicas; no replica may add again before that. All processes add
  // to sharded accumulators in one order.
  bool add(int64_t replica, at::Tensor& value, int64_t index, const at::Tensor& rng);

  // Computes the replica's part of a ring all-reduce over its group. Member k of S members adds up
  // part k of S parts, from the value of member k + 1 to its own, and makes the sum visible to all
  // members. Members may run in parallel.
  void reduce(int64_t replica);

  // Returns the sums of the replicas here, which will be summed over all processes.
  Ring::Summands summands();
  // Replaces the first replica's sum by the total, or by the parts of the replicas here.
  void replace_by(const at::Tensor& sum_of_all);
  // Returns a tensor for a whole sharded sum, filled with the parts of the replicas here. It is the
  // total after the parts of other processes have arrived.
  at::Tensor begin_whole();

  // Return the sum over the replica's group, or its part of it; the group must be reduced first.
  at::Tensor total(int64_t replica);
  at::Tensor total_shard(int64_t replica);

  // Returns the rows to which gradients were added in this window, each once, int64 [rows]; only
  // with a single replica. `sums_of_touched_rows` returns their sums, float32 [rows, width], which
  // are valid until the window ends.
  at::Tensor touched_rows(int64_t replica);
  at::Tensor sums_of_touched_rows(int64_t replica);

  // Clears all sums, at the end of a window or after an error.
  void clear();

 private:
  // Relation of a replica to others: its group, and whether it has reduced.
  struct Member {
    std::vector<int64_t> group;  // replicas with a common sum, including this one
    bool is_reduced = false;     // whether the replica has computed its part
  };

  bool is_alone(int64_t replica) const;
  const at::Tensor& filled(const at::Tensor& tensor) const;
  std::vector<at::Tensor> shards() const;
  std::vector<at::Tensor> sums_of_arrived_parts();

  const AccumulatorId id_;
  const Accumulator& accumulator_;
  const Replicas replicas_;
  RemoteTraffic& remote_;
  Ring* const ring_;

  std::deque<ReplicaSum> sums_;  // indexed by replica
  std::vector<Member> members_;  // indexed by replica
  // Protects the members below, and sums of rows, which parts of an update may read in parallel.
  std::mutex mutex_;
  // Contributions to a sharded sum for one micro-batch, by replica, and their number.
  std::vector<at::Tensor> arrived_;
  int64_t num_arrived_ = 0;
  std::vector<int64_t> sizes_;  // sizes of a sharded sum
  at::Tensor whole_;            // a sharded sum of which other processes have parts
};

}  // namespace poptorch_emu
