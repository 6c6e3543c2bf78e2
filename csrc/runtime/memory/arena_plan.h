#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/memory/offset_plan.h"

namespace poptorch_emu {

// Where the tensors lie that a run of a segment makes.
struct ArenaPlan {
  static constexpr int64_t kEndOfRun = INT64_MAX;

  // An allocation. What is released before the end of the run has a place in the arena.
  struct Piece {
    Allocation allocation;
    int64_t offset;  // in the arena; -1 for what comes from the pool
  };

  // From the allocations of the allocations of a run, in their order.
  explicit ArenaPlan(const std::vector<Allocation>& allocations);

  // Whether all that a run of fewer pieces left out would have lived on.
  bool may_end_at(size_t num_pieces) const;

  std::vector<Piece> pieces;
  // By piece: those that share bytes with it.
  std::vector<std::vector<int32_t>> neighbours;
  int64_t num_bytes = 0;
};

// The plan that the lanes and the replicas of a segment have in common. Any thread may use it.
class CommonPlan {
 public:
  // Empty before the first run of the segment.
  std::shared_ptr<const ArenaPlan> get() const;
  void set(std::shared_ptr<const ArenaPlan> plan);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ArenaPlan> plan_;
};

}  // namespace poptorch_emu
