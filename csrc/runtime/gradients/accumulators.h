#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "program/program.h"
#include "runtime/gradients/gradient_sum.h"
#include "runtime/memory/remote_traffic.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// All sums of gradients of one window, and their exchanges between processes.
class Accumulators {
 public:
  // `remote` copies sums that live in streaming memory. `ring` connects to the replicas of other
  // processes; null if there are none.
  Accumulators(const Program& program, const Replicas& replicas, int64_t num_lanes,
               RemoteTraffic& remote, Ring* ring);

  GradientSum& operator[](AccumulatorId id) { return sums_[id.value]; }

  // Replaces these sums by those over the replicas of all processes, as exchange `number` of a
  // window. Sharded sums use the numbers of accumulators. Throws `Error` if another process fails.
  void exchange(const std::vector<AccumulatorId>& ids, int64_t number);
  // Same as `exchange`, but only the parts of the replicas here become sums.
  void scatter(const std::vector<AccumulatorId>& ids, int64_t number);
  // Assembles sharded sums from the parts of all processes.
  void gather(const std::vector<AccumulatorId>& ids, int64_t number);

  // Clears all sums, at the end of a window or after an error.
  void clear();

  // Returns the bytes of a replica's accumulators on the machine, where a sum of rows is dense.
  int64_t bytes(int64_t replica) const;

 private:
  std::vector<Ring::Summands> summands_of(const std::vector<AccumulatorId>& ids);

  const Replicas replicas_;
  Ring* const ring_;
  std::deque<GradientSum> sums_;  // indexed by accumulator
};

}  // namespace poptorch_emu
