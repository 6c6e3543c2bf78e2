#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "program/program.h"
#include "runtime/segment_memory.h"

namespace poptorch_emu {

// The memory of all tensors that the virtual IPUs of an executor make: an arena for each of them,
// in which its segments have their plans, and a pool for what lives on.
//
// Owned by the executor, before all that holds tensors. Of one virtual IPU by one worker at a time.
class EngineMemory {
 public:
  EngineMemory(const Program& program, int64_t num_replicas);
  ~EngineMemory() { pool_->close(); }
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  // Has the tensors that this thread makes lie where they belong, while the scope exists.
  SegmentMemory::Scope open(SegmentId segment, int64_t replica, int64_t ipu) {
    return {*segments_[segment.value][replica], arenas_[replica][ipu]};
  }

  int64_t arena_bytes() const;
  int64_t pool_bytes() const { return pool_->num_bytes(); }
  // Empty before the first run of the segment.
  const std::vector<SegmentMemory::Piece>& plan(SegmentId segment, int64_t replica) const {
    return segments_.at(segment.value).at(replica)->plan();
  }

 private:
  const std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
  std::vector<std::vector<std::unique_ptr<SegmentMemory>>> segments_;  // by segment, then replica
  std::vector<std::vector<Arena>> arenas_;                             // by replica, then IPU
};

}  // namespace poptorch_emu
