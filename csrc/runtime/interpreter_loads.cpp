// What fills the registers of a frame before its code runs.

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include "common/clock.h"
#include "numerics/channels_last.h"
#include "runtime/interpreter.h"
#include "runtime/shards.h"

namespace poptorch_emu {

at::Tensor Interpreter::load(const LoadInput& source, const Task& task) {
  const int64_t start_ns = now_ns();
  at::Tensor rows = rows_of(source.input, task);
  if (first_reader_[source.input.value] == task.action.segment) {
    const int64_t piece = task.micro_batch_of_call * num_replicas_ + task.replica;
    crossings_.note_input(source.input, piece, start_ns);
  }
  return rows;
}

at::Tensor Interpreter::load(const LoadVariable& source, const Task& task) {
  const Variable& variable = program_.variables[source.variable.value];
  at::Tensor value = source.is_shard ? memory_.variable_shard(source.variable, task.replica)
                                     : memory_.variable(source.variable, task.replica);
  if (!variable.is_remote) return value;
  return came_from_remote(value, variable.is_sharded && !source.is_shard);
}

// What comes from elsewhere does so at each use, and is a copy already.
at::Tensor Interpreter::load(const LoadImageVariable& source, const Task& task) {
  const Variable& variable = program_.variables[source.variable.value];
  if (!variable.is_remote && !variable.is_sharded) {
    return memory_.image(source.variable, task.replica);
  }
  return channels_last(load(LoadVariable{source.variable}, task));
}

at::Tensor Interpreter::load(const LoadConstant& source, const Task& /*task*/) {
  return program_.constants[source.constant.value];
}

at::Tensor Interpreter::load(const LoadScalar& source, const Task& /*task*/) {
  return memory_.scalar(source.scalar);
}

at::Tensor Interpreter::load(const LoadAccumulator& source, const Task& task) {
  const Accumulator& accumulator = program_.accumulators[source.accumulator.value];
  at::Tensor value = source.is_shard ? accumulators_.total_shard(source.accumulator, task.replica)
                                     : accumulators_.total(source.accumulator, task.replica);
  if (!accumulator.is_remote) return value;
  return came_from_remote(value, accumulator.is_sharded && !source.is_shard);
}

at::Tensor Interpreter::load(const LoadVariableRows& source, const Task& task) {
  const at::Tensor rows = accumulators_.touched_rows(source.accumulator, task.replica);
  return memory_.variable(source.variable, task.replica).index_select(0, rows);
}

at::Tensor Interpreter::load(const LoadAccumulatorRows& source, const Task& task) {
  const at::Tensor rows = accumulators_.touched_rows(source.accumulator, task.replica);
  return accumulators_.total(source.accumulator, task.replica).index_select(0, rows);
}

at::Tensor Interpreter::load(const LoadRng& /*source*/, const Task& task) { return rng_for(task); }

at::Tensor Interpreter::load(const LoadPrepared& source, const Task& /*task*/) {
  return (*frames_[source.preparation.value].front().front())[source.source];
}

// What was put together from the parts of all replicas is a copy already, and each of them fetched
// only its own part.
at::Tensor Interpreter::came_from_remote(const at::Tensor& value, bool is_gathered) {
  if (!is_gathered) return remote_.load(value);
  remote_.note_loaded(shard_length(value.numel(), num_replicas_) *
                      static_cast<int64_t>(value.element_size()));
  return value;
}

at::Tensor Interpreter::rows_of(InputId id, const Task& task) const {
  const at::Tensor& whole = inputs_[id.value];
  if (!program_.inputs[id.value].is_batched) return whole;
  const int64_t rows = whole.size(0) / num_blocks_;
  const int64_t block =
      task.micro_batch_of_call * num_groups_ + input_group_of_replica_[task.replica];
  return whole.narrow(0, block * rows, rows);
}

at::Tensor Interpreter::rng_for(const Task& task) const {
  at::Tensor rng = at::empty({4}, at::TensorOptions(at::kLong));
  int64_t* state = rng.mutable_data_ptr<int64_t>();
  state[0] = seed_;
  state[1] = counter_ + task.micro_batch_of_call;
  // What one replica does in an update for all, it does in every process with the same numbers.
  const bool is_of_window = program_.at(task.action.segment).kind == SegmentKind::kWindow;
  const bool acts_for_all = is_of_window && !is_of_parts_[task.action.segment.value];
  state[2] = task.replica + (acts_for_all ? 0 : first_replica_);
  state[3] = 0;
  return rng;
}

}  // namespace poptorch_emu
