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

// The sums of gradients of one window, and what processes exchange of them.
class Accumulators {
 public:
  // `remote` carries what lives in streaming memory; `ring` reaches the replicas of other
  // processes, and is null where there are none.
  Accumulators(const Program& program, const Replicas& replicas, int64_t num_lanes,
               RemoteTraffic& remote, Ring* ring);

  GradientSum& operator[](AccumulatorId id) { return sums_[id.value]; }

  // Makes these sums those over the replicas of all processes, as the `number`-th exchange of a
  // window; those of sharded ones have the numbers of the accumulators. Throws `Error` when another
  // process fails.
  void exchange(const std::vector<AccumulatorId>& ids, int64_t number);
  // The same, but only the parts of the replicas here become sums.
  void scatter(const std::vector<AccumulatorId>& ids, int64_t number);
  // Puts sharded sums together from the parts of all processes.
  void gather(const std::vector<AccumulatorId>& ids, int64_t number);

  // Empties everything, at the end of a window or after an error.
  void clear();

  // Bytes that a replica's accumulators hold on the machine, where a sum of rows is whole.
  int64_t bytes(int64_t replica) const;

 private:
  std::vector<Ring::Summands> summands_of(const std::vector<AccumulatorId>& ids);

  const Replicas replicas_;
  Ring* const ring_;
  std::deque<GradientSum> sums_;  // by accumulator
};

}  // namespace poptorch_emu
