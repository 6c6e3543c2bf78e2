#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// The inputs of a call. A batched input is split along its first dimension into one block for each
// micro-batch and group of replicas, micro-batch by micro-batch.
class CallInputs {
 public:
  CallInputs(const Program& program, const std::vector<int64_t>& group_of_replica);

  // Throws `Error` if the inputs cannot be split for `num_windows`.
  void check(const std::vector<at::Tensor>& inputs, int64_t num_windows) const;
  void begin_call(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  void end_call() { inputs_.clear(); }

  const at::Tensor& whole(InputId id) const { return inputs_[id.value]; }
  // Returns the rows of an input that the task reads: the blocks of its micro-batches, or the whole
  // input if it is not batched. `whole` is the input, or another tensor in the same memory.
  at::Tensor rows(InputId id, const at::Tensor& whole, const Task& task) const;

 private:
  at::Tensor blocks(const at::Tensor& whole, int64_t first, int64_t rows) const;

  const Program& program_;
  const std::vector<int64_t>& group_of_replica_;
  const int64_t num_groups_;
  std::vector<at::Tensor> inputs_;
  int64_t num_blocks_ = 0;
};

}  // namespace poptorch_emu
