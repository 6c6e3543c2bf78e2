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

// One accumulator of a program: first a sum for each replica, then one for each group of replicas.
// Of a sharded accumulator each replica has a part of the sum over all.
//
// Several threads may add to a sharded accumulator, or ask for rows. The scheduler begins a
// reduction when all replicas have added.
class GradientSum {
 public:
  // `ring` reaches the replicas of other processes, and is null where there are none.
  GradientSum(const Program& program, AccumulatorId id, const Replicas& replicas, int64_t num_lanes,
              RemoteTraffic& remote, Ring* ring);

  // A replica's own sum; to be added to as its class says.
  ReplicaSum& of(int64_t replica) { return sums_[replica]; }
  const ReplicaSum& of(int64_t replica) const { return sums_[replica]; }

  // Adds to the replica's sum by its `add`. Contributions to a sharded accumulator are summed up
  // over the replicas at once, by the replica that comes last; no replica may add again before. All
  // processes add to sharded accumulators in one order.
  bool add(int64_t replica, at::Tensor& value, int64_t index, const at::Tensor& rng);

  // Does the replica's part of a ring all-reduce over its group. Of S members the k-th adds up the
  // k-th of S parts, starting with the value of member k + 1 and ending with its own, and makes it
  // known to all. Members may do so at the same time.
  void reduce(int64_t replica);

  // What the replicas here have, to be summed up over all processes.
  Ring::Summands summands();
  // Has the first replica here hold that sum, or those parts of it that belong to replicas here.
  void replace_by(const at::Tensor& sum_of_all);
  // Returns a tensor for a sharded sum, in which those parts are that replicas here have. It is the
  // total as soon as the others' are there.
  at::Tensor begin_whole();

  // The sum over the replica's group, and its part of it; reduced before if the group has several
  // members.
  at::Tensor total(int64_t replica);
  at::Tensor total_shard(int64_t replica);

  // The rows that gradients were added to in this window, each once; int64 [rows]. Of a sum of one
  // replica. And their sums, which are valid until the window ends; float32 [rows, width].
  at::Tensor touched_rows(int64_t replica);
  at::Tensor sums_of_touched_rows(int64_t replica);

  // Empties all, at the end of a window or after an error.
  void clear();

 private:
  // What a replica does with others.
  struct Member {
    std::vector<int64_t> group;  // the replicas whose sums become one, with this one
    bool is_reduced = false;     // it did its part of that
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

  std::deque<ReplicaSum> sums_;  // by replica
  std::vector<Member> members_;  // likewise
  // Of what follows, and of sums of rows, for which several parts of an update may ask at once.
  std::mutex mutex_;
  // By replica, contributions to a sharded sum for one micro-batch, and how many have come.
  std::vector<at::Tensor> arrived_;
  int64_t num_arrived_ = 0;
  std::vector<int64_t> sizes_;  // of a sharded sum
  at::Tensor whole_;            // of a sharded sum, where other processes have parts of it
};

}  // namespace poptorch_emu
