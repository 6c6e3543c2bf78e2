#include "runtime/executor/interpreter.h"

#include <utility>
#include <variant>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/network/collective.h"

namespace poptorch_emu {
namespace {

// Thrown by an action that waits for its turn when the call ends; it is not an error.
struct Abandoned {};

std::vector<bool> window_outputs(const Program& program) {
  std::vector<bool> is_of_window(program.outputs.size(), false);
  for (const Segment& segment : program.segments) {
    for (const Store& store : segment.stores) {
      const auto* target = std::get_if<StoreOutput>(&store.target);
      if (target == nullptr) continue;
      is_of_window[target->output.value] = segment.kind == SegmentKind::kWindow;
    }
  }
  return is_of_window;
}

std::vector<bool> with_collectives(const Program& program) {
  std::vector<bool> has_collectives;
  for (const Segment& segment : program.segments) {
    has_collectives.push_back(!segment.collectives().empty());
  }
  return has_collectives;
}

// Numbers the exchanges of a window. Sharded accumulators have the first numbers. Each segment with
// exchanges has one number for each kind: sums, parts of sums, gathered sums and gathered
// variables. A segment that relays a collective has one number.
std::vector<int64_t> exchange_numbers(const Program& program) {
  constexpr int64_t kKinds = 4;
  std::vector<int64_t> numbers;
  auto next = static_cast<int64_t>(program.accumulators.size());
  for (const Segment& segment : program.segments) {
    numbers.push_back(next);
    next += segment.has_exchanges() ? kKinds : segment.relays() ? 1 : 0;
  }
  return numbers;
}

}  // namespace

Interpreter::Interpreter(const Program& program, const ExecutorOptions& options, DeviceState& state,
                         Callbacks callbacks)
    : program_(program),
      options_(options),
      state_(state),
      callbacks_(std::move(callbacks)),
      is_window_output_(window_outputs(program)),
      exchange_number_(exchange_numbers(program)),
      has_collectives_(with_collectives(program)),
      loader_(program, options, state, times_),
      frames_(program.segments.size()) {
  for (auto& of_replica : frames_) {
    of_replica.resize(options.num_replicas);
    for (auto& of_lane : of_replica) of_lane.resize(options.num_workers);
  }
}

// Adds a large contribution to a sum. It waits until the micro-batch before has added to this sum,
// not until the end of that one's action.
template <class Add>
void Interpreter::add_in_turn(AccumulatorId id, int64_t replica, int64_t micro_batch,
                              const Add& add) {
  if (!add()) {
    const auto has_turn = [&] { return state_.accumulators[id].of(replica).has_turn(micro_batch); };
    if (!callbacks_.wait_until(has_turn)) throw Abandoned();
    const bool is_added = add();
    TORCH_INTERNAL_ASSERT(is_added);
  }
  callbacks_.notify();
}

std::unique_ptr<Frame> Interpreter::make_frame(const Segment& segment, int64_t replica,
                                               int64_t lane) {
  SumAccess sums;
  sums.add_product = [this, replica, lane](AccumulatorId id, int64_t micro_batch,
                                           const Product& product) {
    add_in_turn(id, replica, micro_batch, [&] {
      return state_.accumulators[id].of(replica).add_product(product, micro_batch, lane);
    });
  };
  sums.summands = [this, replica](AccumulatorId id) -> const RowSummands& {
    return state_.accumulators[id].of(replica).rows().summands();
  };
  return std::make_unique<Frame>(program_, segment, lane, callbacks_.call_host, std::move(sums),
                                 options_.replicas());
}

// Returns a frame, created at its first use, because a call may use only few of many lanes.
Frame& Interpreter::frame_of(SegmentId id, int64_t replica, int64_t lane) {
  std::unique_ptr<Frame>& frame = frames_[id.value][replica][lane];
  if (!frame) frame = make_frame(program_.at(id), replica, lane);
  return *frame;
}

template <class Use>
void Interpreter::for_each_frame(size_t segment, const Use& use) {
  for (auto& of_lane : frames_[segment]) {
    for (auto& frame : of_lane) {
      if (frame) use(*frame);
    }
  }
}

void Interpreter::check(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  loader_.inputs().check(inputs, num_windows);
}

void Interpreter::begin_call(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  const int64_t count = num_windows * program_.micro_batches_per_window;
  loader_.inputs().begin_call(inputs, num_windows);
  outputs_.clear();
  for (size_t id = 0; id < program_.outputs.size(); ++id) {
    outputs_.emplace_back(program_.outputs[id], is_window_output_[id] ? num_windows : count,
                          options_.num_replicas);
  }
  times_.begin_call(inputs.size(), count * options_.num_replicas, outputs_);
}

std::vector<at::Tensor> Interpreter::end_call() {
  std::vector<at::Tensor> results;
  for (OutputCollector& output : outputs_) results.push_back(output.take());
  loader_.inputs().end_call();
  outputs_.clear();
  times_.end_call();
  forget_loads<LoadInput>();
  return results;
}

void Interpreter::clear() {
  loader_.preparations().clear();
  for (size_t id = 0; id < frames_.size(); ++id) {
    for_each_frame(id, [](Frame& frame) { frame.clear(); });
  }
}

void Interpreter::prepare() {
  if (loader_.preparations().run_before_call()) forget_loads<LoadPrepared>();
}

// Makes frames release the tensors of one kind of load.
template <class Source>
void Interpreter::forget_loads() {
  for (size_t id = 0; id < program_.segments.size(); ++id) {
    for (const Load& item : program_.segments[id].loads) {
      if (!std::holds_alternative<Source>(item.source)) continue;
      for_each_frame(id, [&](Frame& frame) { frame.forget(item.target); });
    }
  }
}

void Interpreter::forget_replaced() {
  for (size_t id = 0; id < frames_.size(); ++id) {
    for (const Load& item : program_.segments[id].loads) {
      const auto* source = std::get_if<LoadVariable>(&item.source);
      if (source == nullptr) continue;
      for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
        for (auto& frame : frames_[id][replica]) {
          if (frame) frame->forget(item.target, state_.memory.stored(source->variable, replica));
        }
      }
    }
  }
}

Outcome Interpreter::run(Task& task, const std::function<bool()>& may_store) {
  try {
    // A task with collectives uses no arena, because other tasks would overwrite it during a wait.
    if (has_collectives_[task.action.segment.value]) return carry_out(task, may_store);
    const auto scope =
        state_.tensors.open(task.action.segment, task.replica, task.lane, task.worker);
    return carry_out(task, may_store);
  } catch (const Abandoned&) {
    return Outcome::kAbandoned;
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(task, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(task, error.what());
  }
}

Outcome Interpreter::carry_out(Task& task, const std::function<bool()>& may_store) {
  const Segment& segment = program_.at(task.action.segment);
  Frame& frame = frame_of(task.action.segment, task.replica, task.lane);
  if (!run_frame(task, frame)) {
    task.part = frame.part();
    return Outcome::kWaits;
  }
  if (!may_store()) throw Abandoned();
  for (const Store& item : segment.stores) {
    std::visit([&](const auto& target) { store(target, frame, item, task); }, item.target);
  }
  pack_outputs(task, frame);
  frame.clear();
  return Outcome::kDone;
}

// Runs the code from the beginning, or from the last wait. Returns false if the task must wait.
bool Interpreter::run_frame(Task& task, Frame& frame) {
  const Segment& segment = program_.at(task.action.segment);
  if (task.num_collectives > 0) return frame.resume(std::exchange(task.arrived, {}));
  for (AccumulatorId id : segment.reductions) state_.accumulators[id].reduce(task.replica);
  if (segment.has_exchanges()) exchange(segment, exchange_number_[task.action.segment.value]);
  if (segment.relays()) relay(task);
  unpack_inputs(task, frame);
  loader_.load(task, frame);
  return frame.run(task.action.micro_batch, task.replica);
}

void Interpreter::relay(Task& task) {
  const CollectiveId id = program_.at(task.action.segment).relayed;
  const Instruction& instruction = *program_.at(id.segment).collectives()[id.index];
  task.arrived = exchanged(collective_of(instruction.op), task.arrived, options_.replicas(),
                           *options_.ring, exchange_number_[task.action.segment.value]);
}

void Interpreter::fail(const Task& task, const std::string& cause) const {
  const Segment& segment = program_.at(task.action.segment);
  throw Error("The loads or stores of segment '" + segment.name + "' failed for " +
              micro_batches_text(program_, segment, task.action.micro_batch) + ", replica " +
              std::to_string(task.replica) + ": " + cause);
}

void Interpreter::exchange(const Segment& segment, int64_t number) {
  Accumulators& sums = state_.accumulators;
  if (!segment.exchanges.empty()) sums.exchange(segment.exchanges, number);
  if (!segment.scatters.empty()) sums.scatter(segment.scatters, number + 1);
  if (!segment.gathered_sums.empty()) sums.gather(segment.gathered_sums, number + 2);
  if (!segment.gathers.empty()) state_.memory.gather(segment.gathers, *options_.ring, number + 3);
}

void Interpreter::unpack_inputs(Task& task, Frame& frame) {
  const std::vector<LinkId>& incoming = program_.at(task.action.segment).incoming;
  for (size_t i = 0; i < incoming.size(); ++i) {
    const Link& link = program_.links[incoming[i].value];
    unpack(link, std::move(task.taken[i]), task.replica, frame, state_.remote);
  }
  task.taken.clear();
}

void Interpreter::pack_outputs(Task& task, Frame& frame) {
  for (LinkId id : program_.at(task.action.segment).outgoing) {
    const Link& link = program_.links[id.value];
    task.given.push_back(packed(link, frame, task.replica, options_.num_replicas, state_.remote));
  }
}

void Interpreter::store(const StoreOutput& target, Frame& frame, const Store& store,
                        const Task& task) {
  at::Tensor& value = frame[store.source];
  if (!is_of_window(target.output)) {
    const int64_t first = task.micro_batch_of_call + target.piece;
    if (target.num_pieces == 1) return give_output(target.output, value, first, task.replica);
    const int64_t rows = value.size(0) / target.num_pieces;
    for (int64_t piece = 0; piece < target.num_pieces; ++piece) {
      give_output(target.output, value.narrow(0, piece * rows, rows), first + piece, task.replica);
    }
    return;
  }
  // A single runner acts for all replicas.
  const bool acts_for_all = program_.at(task.action.segment).runners.size() == 1;
  for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
    if (acts_for_all || replica == task.replica) {
      give_output(target.output, value, task.window, replica);
    }
  }
}

void Interpreter::store(const StoreVariable& target, Frame& frame, const Store& store,
                        const Task& task) {
  at::Tensor& value = frame[store.source];
  DeviceMemory& memory = state_.memory;
  if (memory.is_stored(target.variable, task.replica, value)) {
    memory.note_change(target.variable, task.replica);
    loader_.preparations().renew(target.variable, task.replica);
    return;
  }
  // A tensor that shares its storage (an input's rows, a hyper-parameter, a view) is copied.
  const bool is_own = value.use_count() == 1 && value.storage().use_count() == 1;
  const bool is_remote = program_.variables[target.variable.value].is_remote;
  at::Tensor kept = is_remote ? state_.remote.store(value) : is_own ? value : value.clone();
  if (target.is_shard) {
    memory.assign_shard(target.variable, task.replica, std::move(kept));
  } else {
    memory.assign(target.variable, task.replica, std::move(kept));
  }
}

void Interpreter::store(const Accumulate& target, Frame& frame, const Store& store,
                        const Task& task) {
  at::Tensor& value = frame[store.source];
  at::Tensor summand = store.is_last_use ? std::move(value) : value;
  const bool is_random = program_.numerics.rounds_stochastically &&
                         program_.accumulators[target.accumulator.value].dtype == at::kHalf;
  const at::Tensor rng = is_random ? loader_.random_state().of(task) : at::Tensor();
  const int64_t number = task.action.micro_batch;
  add_in_turn(target.accumulator, task.replica, number, [&] {
    return state_.accumulators[target.accumulator].add(task.replica, summand, number, rng);
  });
}

void Interpreter::store(const AccumulateRows& target, Frame& frame, const Store& store,
                        const Task& task) {
  const int64_t number = task.action.micro_batch;
  add_in_turn(target.accumulator, task.replica, number, [&] {
    return state_.accumulators[target.accumulator]
        .of(task.replica)
        .add_rows(target, frame[store.source], frame[target.indices], number);
  });
}

void Interpreter::store(const StoreVariableRows& target, Frame& frame, const Store& store,
                        const Task& task) {
  state_.memory.assign_rows(target.variable, task.replica,
                            state_.accumulators[target.accumulator].touched_rows(task.replica),
                            frame[store.source]);
}

void Interpreter::give_output(OutputId id, const at::Tensor& piece, int64_t index,
                              int64_t replica) {
  const int64_t start_ns = now_ns();
  const int64_t place = outputs_[id.value].add(piece, index, replica);
  if (place >= 0) times_.note_output(id, place, start_ns);
}

}  // namespace poptorch_emu
