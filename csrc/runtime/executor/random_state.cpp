#include "runtime/executor/random_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <variant>

namespace poptorch_emu {
namespace {

// Returns whether a runner of a segment computes the same for all replicas, in each process. A
// runner that computes on parts of tensors does not.
bool acts_for_all(const Segment& segment) {
  return segment.kind == SegmentKind::kWindow &&
         std::none_of(segment.loads.begin(), segment.loads.end(), [](const Load& load) {
           const auto* variable = std::get_if<LoadVariable>(&load.source);
           const auto* sum = std::get_if<LoadAccumulator>(&load.source);
           return (variable != nullptr && variable->is_shard) || (sum != nullptr && sum->is_shard);
         });
}

}  // namespace

RandomState::RandomState(const Program& program, int64_t first_replica)
    : first_replica_(first_replica) {
  for (const Segment& segment : program.segments) acts_for_all_.push_back(acts_for_all(segment));
}

void RandomState::set(int64_t seed, int64_t counter) {
  seed_ = seed;
  counter_ = counter;
}

at::Tensor RandomState::of(const Task& task, int64_t piece) const {
  const int64_t first = acts_for_all_[task.action.segment.value] ? 0 : first_replica_;
  at::Tensor state = at::empty({4}, at::TensorOptions(at::kLong));
  int64_t* const numbers = state.mutable_data_ptr<int64_t>();
  numbers[0] = seed_;
  numbers[1] = counter_ + task.micro_batch_of_call + piece;
  numbers[2] = first + task.replica;
  numbers[3] = 0;
  return state;
}

}  // namespace poptorch_emu
