#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "program/program.h"
#include "runtime/memory/segment_memory.h"

namespace poptorch_emu {

// The memory of all tensors that the virtual IPUs of an executor make: an arena for each worker, in
// which the segments have their plans, and a pool for what lives on.
//
// Owned by the executor, before all that holds tensors. Each arena is used by its worker, and each
// lane of a segment by one worker at a time.
class EngineMemory {
 public:
  // A segment that may overlap with itself has as many lanes.
  EngineMemory(const Program& program, int64_t num_replicas, int64_t num_workers);
  ~EngineMemory() { pool_->close(); }
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  // Has the tensors that this thread makes lie where they belong, while the scope exists.
  SegmentMemory::Scope open(SegmentId segment, int64_t replica, int64_t lane, int64_t worker) {
    return {*segments_[segment.value][replica][lane], arenas_[worker]};
  }

  int64_t arena_bytes() const;
  int64_t pool_bytes() const { return pool_->num_bytes(); }
  // Empty before the first run of the segment.
  std::shared_ptr<const ArenaPlan> plan(SegmentId segment) const {
    return plans_.at(segment.value)->get();
  }

 private:
  const std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
  std::vector<std::shared_ptr<CommonPlan>> plans_;  // by segment
  // By segment, replica and lane.
  std::vector<std::vector<std::vector<std::unique_ptr<SegmentMemory>>>> segments_;
  std::vector<Arena> arenas_;  // by worker
};

}  // namespace poptorch_emu
