#include "runtime/executor/loader.h"

#include <variant>

#include "common/clock.h"
#include "numerics/row_copies.h"

namespace poptorch_emu {
namespace {

std::vector<SegmentId> first_readers(const Program& program) {
  std::vector<SegmentId> readers(program.inputs.size(), SegmentId{-1});
  for (size_t id = 0; id < program.segments.size(); ++id) {
    for (const Load& load : program.segments[id].loads) {
      const auto* source = std::get_if<LoadInput>(&load.source);
      if (source == nullptr) continue;
      SegmentId& reader = readers[source->input.value];
      if (reader.value < 0) reader = {static_cast<int64_t>(id)};
    }
  }
  return readers;
}

}  // namespace

Loader::Loader(const Program& program, const ExecutorOptions& options, DeviceState& state,
               TransferTimes& times)
    : program_(program),
      num_replicas_(options.num_replicas),
      state_(state),
      times_(times),
      inputs_(program, options.input_group_of_replica),
      preparations_(program, state.memory),
      random_state_(program, options.first_replica),
      first_reader_(first_readers(program)) {}

void Loader::load(const Task& task, Frame& frame) {
  for (const Load& load : program_.at(task.action.segment).loads) {
    const Target target{frame, load.target};
    frame[load.target] =
        std::visit([&](const auto& source) { return value(source, task, target); }, load.source);
  }
}

at::Tensor Loader::value(const LoadInput& source, const Task& task, const Target& target) {
  const int64_t start_ns = now_ns();
  const at::Tensor& whole = target.own(inputs_.whole(source.input));
  at::Tensor rows = inputs_.rows(source.input, whole, task);
  if (first_reader_[source.input.value] == task.action.segment) {
    for (int64_t piece = 0; piece < program_.joined; ++piece) {
      const int64_t micro_batch = task.micro_batch_of_call + piece;
      times_.note_input(source.input, micro_batch * num_replicas_ + task.replica, start_ns);
    }
  }
  return rows;
}

at::Tensor Loader::value(const LoadVariable& source, const Task& task, const Target& target) {
  const Variable& variable = program_.variables[source.variable.value];
  const bool is_whole = !source.is_shard && !variable.is_sharded;
  if (is_whole && !variable.is_remote) {
    return target.own(state_.memory.stored(source.variable, task.replica));
  }
  at::Tensor value = source.is_shard ? state_.memory.variable_shard(source.variable, task.replica)
                                     : state_.memory.variable(source.variable, task.replica);
  if (!variable.is_remote) return value;
  return from_remote(value, variable.is_sharded && !source.is_shard);
}

at::Tensor Loader::value(const LoadConstant& source, const Task& /*task*/, const Target& target) {
  return target.own(program_.constants[source.constant.value]);
}

at::Tensor Loader::value(const LoadScalar& source, const Task& /*task*/, const Target& /*target*/) {
  return state_.memory.scalar(source.scalar);
}

at::Tensor Loader::value(const LoadAccumulator& source, const Task& task,
                         const Target& /*target*/) {
  const Accumulator& accumulator = program_.accumulators[source.accumulator.value];
  GradientSum& sum = state_.accumulators[source.accumulator];
  at::Tensor value = source.is_shard ? sum.total_shard(task.replica) : sum.total(task.replica);
  if (!accumulator.is_remote) return value;
  return from_remote(value, accumulator.is_sharded && !source.is_shard);
}

at::Tensor Loader::value(const LoadVariableRows& source, const Task& task,
                         const Target& /*target*/) {
  const at::Tensor rows = state_.accumulators[source.accumulator].touched_rows(task.replica);
  return gather_rows(state_.memory.variable(source.variable, task.replica).contiguous(), rows);
}

at::Tensor Loader::value(const LoadAccumulatorRows& source, const Task& task,
                         const Target& /*target*/) {
  return state_.accumulators[source.accumulator].sums_of_touched_rows(task.replica);
}

at::Tensor Loader::value(const LoadRng& source, const Task& task, const Target& /*target*/) {
  return random_state_.of(task, source.piece);
}

at::Tensor Loader::value(const LoadPrepared& source, const Task& task, const Target& target) {
  return target.own(preparations_.value(source, task.replica));
}

// Returns a value of streaming memory as a copy. A value that was assembled from the parts of all
// replicas is a copy already, and each replica loaded only its own part.
at::Tensor Loader::from_remote(const at::Tensor& value, bool is_gathered) {
  if (!is_gathered) return state_.remote.load(value);
  state_.remote.note_loaded(shard_length(value.numel(), num_replicas_) *
                            static_cast<int64_t>(value.element_size()));
  return value;
}

}  // namespace poptorch_emu
