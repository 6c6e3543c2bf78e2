#include "runtime/engine_memory.h"

namespace poptorch_emu {

EngineMemory::EngineMemory(const Program& program, int64_t num_replicas) {
  install_engine_allocator();
  for (size_t segment = 0; segment < program.segments.size(); ++segment) {
    segments_.emplace_back();
    for (int64_t replica = 0; replica < num_replicas; ++replica) {
      segments_.back().push_back(std::make_unique<SegmentMemory>(pool_));
    }
  }
  for (int64_t replica = 0; replica < num_replicas; ++replica) {
    arenas_.emplace_back(program.schedule.size());
  }
}

int64_t EngineMemory::arena_bytes() const {
  int64_t num_bytes = 0;
  for (const std::vector<Arena>& of_replica : arenas_) {
    for (const Arena& arena : of_replica) num_bytes += arena.num_bytes();
  }
  return num_bytes;
}

}  // namespace poptorch_emu
