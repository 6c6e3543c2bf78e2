#include "runtime/executor/interpreter.h"

#include <algorithm>
#include <string>
#include <variant>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/memory/shards.h"

namespace poptorch_emu {
namespace {

// The call is over while an action waits for its turn; no error of the action's own.
struct Abandoned {};

// One of each kind.
constexpr int64_t kExchangesOfSegment = 4;

// Whether a replica of an update does its part there, and not what one does for all.
bool computes_on_parts(const Segment& segment) {
  return std::any_of(segment.loads.begin(), segment.loads.end(), [](const Load& load) {
    const auto* variable = std::get_if<LoadVariable>(&load.source);
    const auto* sum = std::get_if<LoadAccumulator>(&load.source);
    return (variable != nullptr && variable->is_shard) || (sum != nullptr && sum->is_shard);
  });
}

}  // namespace

Interpreter::Interpreter(const Program& program, std::vector<int64_t> input_group_of_replica,
                         int64_t first_replica, Ring* ring, int64_t num_lanes,
                         EngineMemory& tensor_memory, DeviceMemory& memory,
                         Accumulators& accumulators, RemoteTraffic& remote,
                         const HostCaller& call_host, Observation observation)
    : program_(program),
      input_group_of_replica_(std::move(input_group_of_replica)),
      first_replica_(first_replica),
      ring_(ring),
      num_replicas_(static_cast<int64_t>(input_group_of_replica_.size())),
      num_groups_(
          1 + *std::max_element(input_group_of_replica_.begin(), input_group_of_replica_.end())),
      tensor_memory_(tensor_memory),
      memory_(memory),
      accumulators_(accumulators),
      remote_(remote),
      call_host_(call_host),
      observation_(std::move(observation)),
      preparations_(program, memory, call_host) {
  find_ends();
  for (const Segment& segment : program.segments) {
    auto& of_replica = frames_.emplace_back(num_replicas_);
    for (auto& of_lane : of_replica) of_lane.resize(segment.may_overlap ? num_lanes : 1);
  }
}

// Of micro-batches that are under way at once, each waits for the one before at each sum to which
// it adds something large, not for the end of its action.
template <class Add>
void Interpreter::add_in_turn(AccumulatorId id, int64_t replica, int64_t micro_batch,
                              const Add& add) {
  if (!add()) {
    const auto has_turn = [&] { return accumulators_.has_turn(id, replica, micro_batch); };
    if (!observation_.wait_until(has_turn)) throw Abandoned();
    const bool is_added = add();
    TORCH_INTERNAL_ASSERT(is_added);
  }
  observation_.note();
}

std::unique_ptr<Frame> Interpreter::make_frame(const Segment& segment, int64_t replica,
                                               int64_t lane) {
  SumAccess sums;
  sums.add_product = [this, replica, lane](AccumulatorId id, int64_t micro_batch,
                                           const Product& product) {
    add_in_turn(id, replica, micro_batch,
                [&] { return accumulators_.add_product(id, replica, lane, product, micro_batch); });
  };
  sums.summands = [this, replica](AccumulatorId id) -> const RowSummands& {
    return accumulators_.row_summands(id, replica);
  };
  return std::make_unique<Frame>(segment, lane, program_.numerics.checks_floating_point, call_host_,
                                 std::move(sums));
}

// Made at the first use: of many lanes few may be used.
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

void Interpreter::find_ends() {
  first_reader_.assign(program_.inputs.size(), SegmentId{-1});
  is_window_output_.assign(program_.outputs.size(), false);
  // Sharded accumulators have the first numbers.
  auto num_exchanges = static_cast<int64_t>(program_.accumulators.size());
  for (size_t id = 0; id < program_.segments.size(); ++id) {
    const Segment& segment = program_.segments[id];
    exchange_number_.push_back(num_exchanges);
    if (segment.has_exchanges()) num_exchanges += kExchangesOfSegment;
    is_of_parts_.push_back(computes_on_parts(segment));
    for (const Load& load : segment.loads) {
      const auto* source = std::get_if<LoadInput>(&load.source);
      if (source == nullptr) continue;
      SegmentId& reader = first_reader_[source->input.value];
      if (reader.value < 0) reader = {static_cast<int64_t>(id)};
    }
    for (const Store& store : segment.stores) {
      const auto* target = std::get_if<StoreOutput>(&store.target);
      if (target == nullptr) continue;
      is_window_output_[target->output.value] = segment.kind == SegmentKind::kWindow;
    }
  }
}

int64_t Interpreter::num_micro_batches(int64_t num_windows) const {
  return num_windows * program_.micro_batches_per_window;
}

void Interpreter::check(const std::vector<at::Tensor>& inputs, int64_t num_windows) const {
  if (inputs.size() != program_.inputs.size()) {
    throw Error("The program takes " + std::to_string(program_.inputs.size()) +
                " inputs, but was given " + std::to_string(inputs.size()) + ".");
  }
  if (num_windows < 1) {
    throw Error("A call runs at least 1 window, not " + std::to_string(num_windows) + ".");
  }
  int64_t num_blocks = num_groups_;
  for (int64_t factor : {program_.micro_batches_per_window, num_windows}) {
    if (!__builtin_mul_overflow(num_blocks, factor, &num_blocks)) continue;
    throw Error("A call of " + std::to_string(num_windows) +
                " windows has more micro-batches than can be counted.");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!program_.inputs[i].is_batched) continue;
    if (inputs[i].dim() == 0 || inputs[i].size(0) % num_blocks != 0) {
      throw Error("Input " + program_.inputs[i].name + " is " + describe(inputs[i]) +
                  ", but its first dimension must be a multiple of " + std::to_string(num_blocks) +
                  ".");
    }
  }
}

void Interpreter::begin_call(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  const int64_t count = num_micro_batches(num_windows);
  inputs_ = inputs;
  num_blocks_ = count * num_groups_;
  outputs_.clear();
  for (size_t id = 0; id < program_.outputs.size(); ++id) {
    outputs_.emplace_back(program_.outputs[id], is_window_output_[id] ? num_windows : count,
                          num_replicas_);
  }
  crossings_.begin_call(inputs.size(), count * num_replicas_, outputs_);
}

std::vector<at::Tensor> Interpreter::end_call() {
  std::vector<at::Tensor> results;
  for (OutputCollector& output : outputs_) results.push_back(output.take());
  inputs_.clear();
  outputs_.clear();
  crossings_.end_call();
  forget_loads<LoadInput>();
  return results;
}

void Interpreter::clear() {
  preparations_.clear();
  for (size_t id = 0; id < frames_.size(); ++id) {
    for_each_frame(id, [](Frame& frame) { frame.clear(); });
  }
}

// The memory is PyTorch's own: what lives on would spoil the plans of the segments.
void Interpreter::prepare() {
  if (preparations_.run_before_call()) forget_loads<LoadPrepared>();
}

// Has the frames let go of what their own registers have of loads of a kind.
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
      for (int64_t replica = 0; replica < num_replicas_; ++replica) {
        for (auto& frame : frames_[id][replica]) {
          if (frame) frame->keep_only(item.target, memory_.stored(source->variable, replica));
        }
      }
    }
  }
}

void Interpreter::set_rng_state(int64_t seed, int64_t counter) {
  seed_ = seed;
  counter_ = counter;
}

bool Interpreter::run(Task& task, const std::function<bool()>& may_store) {
  const Segment& segment = program_.at(task.action.segment);
  // What cannot overlap has one frame, whatever its lane.
  const int64_t lane = segment.may_overlap ? task.lane : 0;
  Frame& frame = frame_of(task.action.segment, task.replica, lane);
  try {
    const auto scope = tensor_memory_.open(task.action.segment, task.replica, lane, task.worker);
    for (AccumulatorId id : segment.reductions) accumulators_.reduce(id, task.replica);
    if (segment.has_exchanges()) exchange(segment, exchange_number_[task.action.segment.value]);
    unpack_inputs(task, frame);
    load_all(segment, task, frame);
    frame.run(task.action.micro_batch, task.replica);
    if (!may_store()) throw Abandoned();
    for (const Store& item : segment.stores) {
      std::visit([&](const auto& target) { store(target, frame, item, task); }, item.target);
    }
    pack_outputs(task, frame);
    frame.clear();
    return true;
  } catch (const Abandoned&) {
    return false;
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(task, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(task, error.what());
  }
}

void Interpreter::fail(const Task& task, const std::string& cause) const {
  throw Error("The loads or stores of segment '" + program_.at(task.action.segment).name +
              "' failed for micro-batch " + std::to_string(task.action.micro_batch) + ", replica " +
              std::to_string(task.replica) + ": " + cause);
}

// Each kind has a number of its own.
void Interpreter::exchange(const Segment& segment, int64_t number) {
  if (!segment.exchanges.empty()) accumulators_.exchange(segment.exchanges, number);
  if (!segment.scatters.empty()) accumulators_.scatter(segment.scatters, number + 1);
  if (!segment.gathered_sums.empty()) accumulators_.gather(segment.gathered_sums, number + 2);
  if (!segment.gathers.empty()) memory_.gather(segment.gathers, *ring_, number + 3);
}

void Interpreter::unpack_inputs(Task& task, Frame& frame) {
  const std::vector<LinkId>& incoming = program_.at(task.action.segment).incoming;
  for (size_t i = 0; i < incoming.size(); ++i) {
    const Link& link = program_.links[incoming[i].value];
    unpack(link, std::move(task.taken[i]), task.replica, frame, remote_);
  }
  task.taken.clear();
}

void Interpreter::pack_outputs(Task& task, Frame& frame) {
  for (LinkId id : program_.at(task.action.segment).outgoing) {
    const Link& link = program_.links[id.value];
    task.given.push_back(packed(link, frame, task.replica, num_replicas_, remote_));
  }
}

void Interpreter::store(const StoreOutput& target, Frame& frame, const Store& store,
                        const Task& task) {
  at::Tensor& value = frame[store.source];
  if (!is_of_window(target.output)) {
    give_output(target.output, value, task.micro_batch_of_call, task.replica);
    return;
  }
  // A single runner acts for all.
  const bool acts_for_all = program_.at(task.action.segment).runners.size() == 1;
  for (int64_t replica = 0; replica < num_replicas_; ++replica) {
    if (acts_for_all || replica == task.replica) {
      give_output(target.output, value, task.window, replica);
    }
  }
}

void Interpreter::store(const StoreVariable& target, Frame& frame, const Store& store,
                        const Task& task) {
  at::Tensor& value = frame[store.source];
  if (memory_.is_stored(target.variable, task.replica, value)) {
    memory_.note_change(target.variable, task.replica);
    preparations_.renew(target.variable, task.replica);
    return;
  }
  // A tensor that shares its storage (an input's rows, a hyper-parameter, a view) is copied.
  const bool is_own = value.use_count() == 1 && value.storage().use_count() == 1;
  const bool is_remote = program_.variables[target.variable.value].is_remote;
  at::Tensor kept = is_remote ? remote_.store(value) : is_own ? value : value.clone();
  if (target.is_shard) {
    memory_.assign_shard(target.variable, task.replica, std::move(kept));
  } else {
    memory_.assign(target.variable, task.replica, std::move(kept));
  }
}

void Interpreter::store(const Accumulate& target, Frame& frame, const Store& store,
                        const Task& task) {
  at::Tensor& value = frame[store.source];
  at::Tensor summand = store.is_last_use ? std::move(value) : value;
  const bool is_random = program_.numerics.rounds_stochastically &&
                         program_.accumulators[target.accumulator.value].dtype == at::kHalf;
  const at::Tensor rng = is_random ? rng_for(task) : at::Tensor();
  const int64_t number = task.action.micro_batch;
  add_in_turn(target.accumulator, task.replica, number, [&] {
    return accumulators_.add(target.accumulator, task.replica, summand, number, rng);
  });
}

void Interpreter::store(const AccumulateRows& target, Frame& frame, const Store& store,
                        const Task& task) {
  const int64_t number = task.action.micro_batch;
  add_in_turn(target.accumulator, task.replica, number, [&] {
    return accumulators_.add_rows(target, task.replica, frame[store.source], frame[target.indices],
                                  number);
  });
}

void Interpreter::store(const StoreVariableRows& target, Frame& frame, const Store& store,
                        const Task& task) {
  memory_.assign_rows(target.variable, task.replica,
                      accumulators_.touched_rows(target.accumulator, task.replica),
                      frame[store.source]);
}

void Interpreter::give_output(OutputId id, const at::Tensor& piece, int64_t index,
                              int64_t replica) {
  const int64_t start_ns = now_ns();
  const int64_t place = outputs_[id.value].add(piece, index, replica);
  if (place >= 0) crossings_.note_output(id, place, start_ns);
}

}  // namespace poptorch_emu
