#pragma once

#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Ways in which several micro-batches may pass through a segment.
enum class Turns {
  kOneByOne,  // the next one begins after the one before has left
  kInTurn,    // they compute in parallel, and store in order
  kAnyOrder,  // each one leaves as soon as it can
};

// Order in which a worker may run a micro-batch, instead of following the lists of the schedule.
struct MicroBatchOrder {
  // Segments that each micro-batch runs, in order; empty if the lists must be followed.
  std::vector<SegmentId> path = {};
  std::vector<Turns> turns = {};  // indexed by segment
};

// Returns an order whose results equal those of the lists. It has a path only if a window has
// several micro-batches, no segment of theirs waits for other replicas or is seen outside, links
// stay among these segments, and no two of them use a variable that one of them writes.
MicroBatchOrder micro_batch_order(const Program& program);

}  // namespace poptorch_emu
