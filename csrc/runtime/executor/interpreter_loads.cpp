// What fills the registers of a frame before its code runs.

#include <ATen/ops/empty.h>

#include <cstdint>

#include "common/clock.h"
#include "numerics/row_copies.h"
#include "runtime/executor/interpreter.h"
#include "runtime/memory/shards.h"

namespace poptorch_emu {
namespace {

// What `narrow` returns for the first dimension, without a way through the dispatcher.
at::Tensor rows_view(const at::Tensor& whole, int64_t first, int64_t rows) {
  c10::SmallVector<int64_t, 6> sizes(whole.sizes().begin(), whole.sizes().end());
  sizes[0] = rows;
  auto view = whole.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  view->set_sizes_and_strides(sizes, whole.strides(),
                              whole.storage_offset() + first * whole.stride(0));
  return at::Tensor(std::move(view));
}

// MKL reads rows that do not begin at a multiple of so many bytes by other code on some processors,
// with other bits.
constexpr int64_t kAligned = 16;

bool is_aligned(int64_t place) { return place % kAligned == 0; }

// Whether the values of a tensor, and those of blocks of so many bytes in it, lie where a kernel
// may give them other bits than if they were alone.
bool may_have_other_bits(const at::Tensor& whole, int64_t block_bytes) {
  if (!whole.is_floating_point() && !whole.is_complex()) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(whole.const_data_ptr());
  return !is_aligned(static_cast<int64_t>(address)) || !is_aligned(block_bytes);
}

}  // namespace

void Interpreter::load_all(const Segment& segment, const Task& task, Frame& frame) {
  for (const Load& item : segment.loads) {
    const Place place{frame, item.target};
    frame[item.target] =
        std::visit([&](const auto& source) { return load(source, task, place); }, item.source);
  }
}

at::Tensor Interpreter::load(const LoadInput& source, const Task& task, const Place& place) {
  const int64_t start_ns = now_ns();
  at::Tensor rows = rows_of(source.input, place.own(inputs_[source.input.value]), task);
  if (first_reader_[source.input.value] == task.action.segment) {
    const int64_t piece = task.micro_batch_of_call * num_replicas_ + task.replica;
    crossings_.note_input(source.input, piece, start_ns);
  }
  return rows;
}

at::Tensor Interpreter::load(const LoadVariable& source, const Task& task, const Place& place) {
  const Variable& variable = program_.variables[source.variable.value];
  const bool is_whole = !source.is_shard && !variable.is_sharded;
  if (is_whole && !variable.is_remote) {
    return place.own(memory_.stored(source.variable, task.replica));
  }
  at::Tensor value = source.is_shard ? memory_.variable_shard(source.variable, task.replica)
                                     : memory_.variable(source.variable, task.replica);
  if (!variable.is_remote) return value;
  return came_from_remote(value, variable.is_sharded && !source.is_shard);
}

at::Tensor Interpreter::load(const LoadConstant& source, const Task& /*task*/, const Place& place) {
  return place.own(program_.constants[source.constant.value]);
}

at::Tensor Interpreter::load(const LoadScalar& source, const Task& /*task*/,
                             const Place& /*place*/) {
  return memory_.scalar(source.scalar);
}

at::Tensor Interpreter::load(const LoadAccumulator& source, const Task& task,
                             const Place& /*place*/) {
  const Accumulator& accumulator = program_.accumulators[source.accumulator.value];
  at::Tensor value = source.is_shard ? accumulators_.total_shard(source.accumulator, task.replica)
                                     : accumulators_.total(source.accumulator, task.replica);
  if (!accumulator.is_remote) return value;
  return came_from_remote(value, accumulator.is_sharded && !source.is_shard);
}

at::Tensor Interpreter::load(const LoadVariableRows& source, const Task& task,
                             const Place& /*place*/) {
  const at::Tensor rows = accumulators_.touched_rows(source.accumulator, task.replica);
  return gather_rows(memory_.variable(source.variable, task.replica).contiguous(), rows);
}

at::Tensor Interpreter::load(const LoadAccumulatorRows& source, const Task& task,
                             const Place& /*place*/) {
  return accumulators_.sums_of_touched_rows(source.accumulator, task.replica);
}

at::Tensor Interpreter::load(const LoadRng& /*source*/, const Task& task, const Place& /*place*/) {
  return rng_for(task);
}

at::Tensor Interpreter::load(const LoadPrepared& source, const Task& task, const Place& place) {
  return place.own(preparations_.value(source, task.replica));
}

// What was put together from the parts of all replicas is a copy already, and each of them fetched
// only its own part.
at::Tensor Interpreter::came_from_remote(const at::Tensor& value, bool is_gathered) {
  if (!is_gathered) return remote_.load(value);
  remote_.note_loaded(shard_length(value.numel(), num_replicas_) *
                      static_cast<int64_t>(value.element_size()));
  return value;
}

// All blocks of an input are copied or none, so that each micro-batch asks for the same memory.
at::Tensor Interpreter::rows_of(InputId id, const at::Tensor& whole, const Task& task) const {
  if (!program_.inputs[id.value].is_batched) {
    return may_have_other_bits(whole, 0) ? whole.clone() : whole;
  }
  const int64_t rows = whole.size(0) / num_blocks_;
  const int64_t block =
      task.micro_batch_of_call * num_groups_ + input_group_of_replica_[task.replica];
  const at::Tensor view = rows_view(whole, block * rows, rows);
  const int64_t block_bytes = rows * whole.stride(0) * static_cast<int64_t>(whole.element_size());
  return may_have_other_bits(whole, block_bytes) ? view.clone() : view;
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
