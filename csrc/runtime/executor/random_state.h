#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// State of the counter-based random numbers: a seed, and the number of micro-batches that have run
// since it was set. The numbers of an action depend on its micro-batch and its replica only, not on
// the order of actions.
class RandomState {
 public:
  // `first_replica` is the index of this process's first replica among those of all processes.
  RandomState(const Program& program, int64_t first_replica);

  std::pair<int64_t, int64_t> get() const { return {seed_, counter_}; }
  void set(int64_t seed, int64_t counter);
  void advance(int64_t num_micro_batches) { counter_ += num_micro_batches; }

  // Returns the `rng` argument for the random operators of a task, for one of its joined
  // micro-batches; int64 [4].
  at::Tensor of(const Task& task, int64_t piece = 0) const;

 private:
  const int64_t first_replica_;
  std::vector<bool> acts_for_all_;  // indexed by segment
  int64_t seed_ = 0;
  int64_t counter_ = 0;
};

}  // namespace poptorch_emu
