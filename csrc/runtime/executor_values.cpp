// The part of the executor that moves values into frames and out of them.

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/executor.h"

namespace poptorch_emu {

void Executor::take_inputs(VirtualIpu& ipu, const Action& action) {
  for (LinkId id : program_->at(action.segment).incoming) {
    ipu.taken.push_back(queues_[id.value].pop(ipu.replica));
  }
}

std::vector<int64_t> Executor::receivers(const Link& link, int64_t replica) const {
  const Segment& producer = program_->at(link.producer);
  const bool speaks_for_all = producer.kind == SegmentKind::kWindow && producer.runners.size() == 1;
  return speaks_for_all ? program_->at(link.consumer).runners : std::vector<int64_t>{replica};
}

void Executor::give_outputs(VirtualIpu& ipu, const Action& action) {
  const std::vector<LinkId>& outgoing = program_->at(action.segment).outgoing;
  for (size_t i = 0; i < outgoing.size(); ++i) {
    const Link& link = program_->links[outgoing[i].value];
    for (int64_t receiver : receivers(link, ipu.replica)) {
      queues_[outgoing[i].value].push(receiver, ipu.given[i]);
    }
  }
  ipu.given.clear();
}

int64_t Executor::global_micro_batch(const Action& action) const {
  return window_ * program_->micro_batches_per_window + action.micro_batch;
}

void Executor::execute(VirtualIpu& ipu, const Action& action) {
  const Segment& segment = program_->at(action.segment);
  Frame& frame = *frames_[action.segment.value][ipu.replica];
  const SegmentMemory::Scope memory(*segment_memories_[action.segment.value][ipu.replica],
                                    arenas_[&ipu - ipus_.data()]);
  try {
    for (AccumulatorId id : segment.reductions) accumulators_.reduce(id, ipu.replica);
    unpack_inputs(ipu, segment, frame);
    for (const Load& item : segment.loads) load(frame, item, ipu, action);
    frame.run(action.micro_batch, ipu.replica);
    for (const Store& item : segment.stores) store(frame, item, ipu, action);
    pack_outputs(ipu, segment, frame);
    frame.clear();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(segment, action, ipu, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(segment, action, ipu, error.what());
  }
}

void Executor::unpack_inputs(VirtualIpu& ipu, const Segment& segment, Frame& frame) {
  for (size_t i = 0; i < segment.incoming.size(); ++i) {
    const Link& link = program_->links[segment.incoming[i].value];
    unpack(link, std::move(ipu.taken[i]), ipu.replica, frame, remote_);
  }
  ipu.taken.clear();
}

void Executor::pack_outputs(VirtualIpu& ipu, const Segment& segment, Frame& frame) {
  for (LinkId id : segment.outgoing) {
    const Link& link = program_->links[id.value];
    ipu.given.push_back(packed(link, frame, ipu.replica, options_.num_replicas, remote_));
  }
}

void Executor::fail(const Segment& segment, const Action& action, const VirtualIpu& ipu,
                    const std::string& cause) const {
  throw Error("The loads or stores of segment '" + segment.name + "' failed for micro-batch " +
              std::to_string(action.micro_batch) + ", replica " + std::to_string(ipu.replica) +
              ": " + cause);
}

void Executor::load(Frame& frame, const Load& load, const VirtualIpu& ipu, const Action& action) {
  at::Tensor& target = frame[load.target];
  const int64_t micro_batch = global_micro_batch(action);
  if (const auto* source = std::get_if<LoadVariable>(&load.source)) {
    const Variable& variable = program_->variables[source->variable.value];
    target = source->is_shard ? memory_.variable_shard(source->variable, ipu.replica)
                              : memory_.variable(source->variable, ipu.replica);
    if (variable.is_remote) {
      target = came_from_remote(target, variable.is_sharded && !source->is_shard);
    }
  } else if (const auto* source = std::get_if<LoadConstant>(&load.source)) {
    target = program_->constants[source->constant.value];
  } else if (const auto* source = std::get_if<LoadInput>(&load.source)) {
    const int64_t start_ns = now_ns();
    target = rows_of(source->input, micro_batch, ipu.replica);
    if (first_reader_[source->input.value] == action.segment) {
      const int64_t piece = micro_batch * options_.num_replicas + ipu.replica;
      input_spans_[source->input.value][piece] = {start_ns, now_ns()};
    }
  } else if (const auto* source = std::get_if<LoadScalar>(&load.source)) {
    target = memory_.scalar(source->scalar);
  } else if (const auto* source = std::get_if<LoadAccumulator>(&load.source)) {
    target = source->is_shard ? accumulators_.total_shard(source->accumulator, ipu.replica)
                              : accumulators_.total(source->accumulator, ipu.replica);
    const Accumulator& accumulator = program_->accumulators[source->accumulator.value];
    if (accumulator.is_remote) {
      target = came_from_remote(target, accumulator.is_sharded && !source->is_shard);
    }
  } else if (const auto* source = std::get_if<LoadVariableRows>(&load.source)) {
    target = memory_.variable(source->variable, ipu.replica)
                 .index_select(0, accumulators_.touched_rows(source->accumulator, ipu.replica));
  } else if (const auto* source = std::get_if<LoadAccumulatorRows>(&load.source)) {
    const AccumulatorId id = source->accumulator;
    target = accumulators_.total(id, ipu.replica)
                 .index_select(0, accumulators_.touched_rows(id, ipu.replica));
  } else {
    target = rng_for(ipu, micro_batch);
  }
}

// What was put together from the parts of all replicas is a copy already, and each of them fetched
// only its own part.
at::Tensor Executor::came_from_remote(const at::Tensor& value, bool is_gathered) {
  if (!is_gathered) return remote_.load(value);
  remote_.note_loaded(shard_length(value.numel(), options_.num_replicas) *
                      static_cast<int64_t>(value.element_size()));
  return value;
}

at::Tensor Executor::rng_for(const VirtualIpu& ipu, int64_t global_micro_batch) const {
  at::Tensor rng = at::empty({4}, at::TensorOptions(at::kLong));
  int64_t* state = rng.mutable_data_ptr<int64_t>();
  state[0] = seed_;
  state[1] = counter_ + global_micro_batch;
  state[2] = ipu.replica;
  state[3] = 0;
  return rng;
}

void Executor::store(Frame& frame, const Store& store, const VirtualIpu& ipu,
                     const Action& action) {
  at::Tensor& source = frame[store.source];
  if (const auto* target = std::get_if<StoreOutput>(&store.target)) {
    if (is_window_output_[target->output.value]) {
      // A single runner acts for all.
      const bool acts_for_all = program_->at(action.segment).runners.size() == 1;
      for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
        if (acts_for_all || replica == ipu.replica) {
          give_output(target->output, source, window_, replica);
        }
      }
    } else {
      give_output(target->output, source, global_micro_batch(action), ipu.replica);
    }
  } else if (const auto* target = std::get_if<StoreVariable>(&store.target)) {
    // A tensor that shares its storage (an input's rows, a hyper-parameter, a view) is copied.
    const bool is_own = source.use_count() == 1 && source.storage().use_count() == 1;
    const bool is_remote = program_->variables[target->variable.value].is_remote;
    at::Tensor value = is_remote ? remote_.store(source) : is_own ? source : source.clone();
    if (target->is_shard) {
      memory_.assign_shard(target->variable, ipu.replica, std::move(value));
    } else {
      memory_.assign(target->variable, ipu.replica, std::move(value));
    }
  } else if (const auto* target = std::get_if<Accumulate>(&store.target)) {
    at::Tensor value = store.is_last_use ? std::move(source) : source;
    const bool is_random = program_->numerics.rounds_stochastically &&
                           program_->accumulators[target->accumulator.value].dtype == at::kHalf;
    accumulators_.add(target->accumulator, ipu.replica, std::move(value), action.micro_batch,
                      is_random ? rng_for(ipu, global_micro_batch(action)) : at::Tensor());
  } else if (const auto* target = std::get_if<AccumulateRows>(&store.target)) {
    accumulators_.add_rows(*target, ipu.replica, source, frame[target->indices],
                           action.micro_batch);
  } else if (const auto* target = std::get_if<StoreVariableRows>(&store.target)) {
    memory_.assign_rows(target->variable, ipu.replica,
                        accumulators_.touched_rows(target->accumulator, ipu.replica), source);
  }
}

void Executor::give_output(OutputId id, const at::Tensor& piece, int64_t index, int64_t replica) {
  const int64_t start_ns = now_ns();
  const int64_t place = outputs_[id.value].add(piece, index, replica);
  if (place >= 0) output_spans_[id.value][place] = {start_ns, now_ns()};
}

at::Tensor Executor::rows_of(InputId id, int64_t micro_batch, int64_t replica) const {
  const at::Tensor& whole = inputs_[id.value];
  if (!program_->inputs[id.value].is_batched) return whole;
  const int64_t blocks = num_windows_ * program_->micro_batches_per_window * num_groups_;
  const int64_t rows = whole.size(0) / blocks;
  const int64_t block = micro_batch * num_groups_ + options_.input_group_of_replica[replica];
  return whole.narrow(0, block * rows, rows);
}

}  // namespace poptorch_emu
