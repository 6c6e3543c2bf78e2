#include "runtime/engine_memory.h"

namespace poptorch_emu {

EngineMemory::EngineMemory(const Program& program, int64_t num_replicas, int64_t num_lanes) {
  install_engine_allocator();
  for (const Segment& segment : program.segments) {
    for (auto& of_lane : segments_.emplace_back(num_replicas)) {
      for (int64_t lane = 0; lane < (segment.may_overlap ? num_lanes : 1); ++lane) {
        of_lane.push_back(std::make_unique<SegmentMemory>(pool_));
      }
    }
  }
  for (auto& of_ipu : arenas_ = decltype(arenas_)(num_replicas)) {
    of_ipu.resize(program.schedule.size());
    for (std::vector<Arena>& of_lane : of_ipu) of_lane.resize(num_lanes);
  }
}

int64_t EngineMemory::arena_bytes() const {
  int64_t num_bytes = 0;
  for (const auto& of_ipu : arenas_) {
    for (const std::vector<Arena>& of_lane : of_ipu) {
      for (const Arena& arena : of_lane) num_bytes += arena.num_bytes();
    }
  }
  return num_bytes;
}

}  // namespace poptorch_emu
