#include "runtime/memory/arena_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace poptorch_emu {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool is_needed_with(const Allocation& one, const Allocation& other) {
  return one.birth < other.death && other.birth < one.death;
}

}  // namespace

OffsetPlan plan_offsets(const std::vector<Allocation>& allocations) {
  OffsetPlan plan;
  plan.offsets.assign(allocations.size(), 0);
  std::vector<size_t> by_size(allocations.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&allocations](size_t left, size_t right) {
    return allocations[left].num_bytes > allocations[right].num_bytes;
  });
  std::vector<size_t> placed;  // in the order of their offsets
  for (size_t index : by_size) {
    const int64_t num_bytes = aligned(allocations[index].num_bytes);
    int64_t end = 0;  // end of the overlapping allocations so far
    int64_t best = -1;
    int64_t smallest_gap = 0;
    for (size_t other : placed) {
      if (!is_needed_with(allocations[index], allocations[other])) continue;
      const int64_t gap = plan.offsets[other] - end;
      if (gap >= num_bytes && (best < 0 || gap < smallest_gap)) {
        best = end;
        smallest_gap = gap;
      }
      end = std::max(end, plan.offsets[other] + aligned(allocations[other].num_bytes));
    }
    const int64_t offset = best < 0 ? end : best;
    plan.offsets[index] = offset;
    plan.num_bytes = std::max(plan.num_bytes, offset + num_bytes);
    const auto place = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&plan](int64_t value, size_t other) { return value < plan.offsets[other]; });
    placed.insert(place, index);
  }
  return plan;
}

ArenaPlan::ArenaPlan(const std::vector<Allocation>& allocations) : neighbours(allocations.size()) {
  std::vector<Allocation> released;
  std::vector<size_t> planned;
  for (const Allocation& allocation : allocations) {
    if (allocation.death != kEndOfRun) {
      released.push_back(allocation);
      planned.push_back(pieces.size());
    }
    pieces.push_back({allocation, kFromPool});
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
                     [](const Piece& piece) { return piece.offset == kFromPool; });
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
