#pragma once

#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// How several micro-batches may pass a segment at the same time.
enum class Turns {
  kOneByOne,  // the next one begins when the one before has left
  kInTurn,    // they compute at once, and store in order
  kAnyOrder,  // each leaves as soon as it can
};

// What a worker may do with a micro-batch in place of following the lists of the schedule.
struct MicroBatchOrder {
  // What each micro-batch runs, in order; empty where the lists must be followed.
  std::vector<SegmentId> path = {};
  std::vector<Turns> turns = {};  // by segment
};

// Returns the order that no result can tell from that of the lists. There is a path where a window
// has several micro-batches, none of their segments waits for other replicas or is seen outside,
// links stay among them, and no two of them use a variable that one of them writes.
MicroBatchOrder micro_batch_order(const Program& program);

}  // namespace poptorch_emu
