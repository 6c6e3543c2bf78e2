#include "runtime/memory/offset_plan.h"

#include <algorithm>
#include <numeric>

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

OffsetPlan plan_offsets(const std::vector<Allocation>& pieces) {
  OffsetPlan plan;
  plan.offsets.assign(pieces.size(), 0);
  std::vector<size_t> by_size(pieces.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&pieces](size_t left, size_t right) {
    return pieces[left].num_bytes > pieces[right].num_bytes;
  });
  std::vector<size_t> placed;  // in order of their offsets
  for (size_t index : by_size) {
    const int64_t num_bytes = aligned(pieces[index].num_bytes);
    int64_t end = 0;  // of the pieces so far that are needed with this one
    int64_t best = -1;
    int64_t smallest_gap = 0;
    for (size_t other : placed) {
      if (!is_needed_with(pieces[index], pieces[other])) continue;
      const int64_t gap = plan.offsets[other] - end;
      if (gap >= num_bytes && (best < 0 || gap < smallest_gap)) {
        best = end;
        smallest_gap = gap;
      }
      end = std::max(end, plan.offsets[other] + aligned(pieces[other].num_bytes));
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

}  // namespace poptorch_emu
