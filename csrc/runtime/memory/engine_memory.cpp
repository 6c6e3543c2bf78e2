#include "runtime/memory/engine_memory.h"

namespace poptorch_emu {

EngineMemory::EngineMemory(const Program& program, int64_t num_replicas, int64_t num_workers)
    : arenas_(num_workers) {
  install_engine_allocator();
  for (const Segment& segment : program.segments) {
    const auto& plan = plans_.emplace_back(std::make_shared<CommonPlan>());
    for (auto& of_lane : segments_.emplace_back(num_replicas)) {
      for (int64_t lane = 0; lane < (segment.may_overlap ? num_workers : 1); ++lane) {
        of_lane.push_back(std::make_unique<SegmentMemory>(pool_, plan));
      }
    }
  }
}

int64_t EngineMemory::arena_bytes() const {
  int64_t num_bytes = 0;
  for (const Arena& arena : arenas_) num_bytes += arena.num_bytes();
  return num_bytes;
}

}  // namespace poptorch_emu
