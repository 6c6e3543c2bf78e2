#include "runtime/memory/arena_plan.h"

#include <algorithm>
#include <utility>

namespace poptorch_emu {

ArenaPlan::ArenaPlan(const std::vector<Allocation>& allocations) : neighbours(allocations.size()) {
  std::vector<Allocation> released;
  std::vector<size_t> planned;
  for (const Allocation& allocation : allocations) {
    if (allocation.death != kEndOfRun) {
      released.push_back(allocation);
      planned.push_back(pieces.size());
    }
    pieces.push_back({allocation, -1});
  }
  const OffsetPlan plan = plan_offsets(released);
  num_bytes = plan.num_bytes;
  for (size_t i = 0; i < planned.size(); ++i) {
    Piece& one = pieces[planned[i]];
    one.offset = plan.offsets[i];
    for (size_t j = 0; j < i; ++j) {
      const Piece& other = pieces[planned[j]];
      if (one.offset < other.offset + other.allocation.num_bytes &&
          other.offset < one.offset + one.allocation.num_bytes) {
        neighbours[planned[i]].push_back(static_cast<int32_t>(planned[j]));
        neighbours[planned[j]].push_back(static_cast<int32_t>(planned[i]));
      }
    }
  }
}

bool ArenaPlan::may_end_at(size_t num_pieces) const {
  return num_pieces >= pieces.size() ||
         std::all_of(pieces.begin() + static_cast<int64_t>(num_pieces), pieces.end(),
                     [](const Piece& piece) { return piece.offset < 0; });
}

std::shared_ptr<const ArenaPlan> CommonPlan::get() const {
  const std::lock_guard lock(mutex_);
  return plan_;
}

void CommonPlan::set(std::shared_ptr<const ArenaPlan> plan) {
  const std::lock_guard lock(mutex_);
  plan_ = std::move(plan);
}

}  // namespace poptorch_emu
