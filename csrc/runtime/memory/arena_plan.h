#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace poptorch_emu {

// A piece of memory that is needed from `birth` until before `death`.
struct Allocation {
  int64_t birth;
  int64_t death;
  int64_t num_bytes;
};

// Offsets of allocations in one block. Those that are needed at the same time share no byte.
struct OffsetPlan {
  std::vector<int64_t> offsets;  // indexed by allocation; multiples of 64 bytes
  int64_t num_bytes = 0;         // size of the block
};

// Places allocations in the order of their size, largest first, each in the smallest gap between
// those that are needed at the same time. Source: greedy by size for offset calculation,
// https://arxiv.org/pdf/2001.03288.
OffsetPlan plan_offsets(const std::vector<Allocation>& allocations);

// Memory plan of a segment's run, from the allocations of a recorded run in order. Allocations that
// are released within the run have a place in the arena; the others come from the pool.
struct ArenaPlan {
  static constexpr int64_t kEndOfRun = INT64_MAX;
  static constexpr int64_t kFromPool = -1;

  struct Piece {
    Allocation allocation;
    int64_t offset;  // offset in the arena, or `kFromPool`
  };

  explicit ArenaPlan(const std::vector<Allocation>& allocations);

  // Returns whether a run with only the first `num_pieces` allocations follows the plan. This is
  // true if the missing ones have no place in the arena.
  bool may_end_at(size_t num_pieces) const;

  std::vector<Piece> pieces;
  // For each piece, the other pieces that share bytes of the arena with it.
  std::vector<std::vector<int32_t>> neighbours;
  int64_t num_bytes = 0;  // size of the arena
};

// The plan that all lanes and replicas of a segment share. Any thread may use it.
class CommonPlan {
 public:
  // Returns null before the first run of the segment.
  std::shared_ptr<const ArenaPlan> get() const;
  void set(std::shared_ptr<const ArenaPlan> plan);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ArenaPlan> plan_;
};

}  // namespace poptorch_emu
