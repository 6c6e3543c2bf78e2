#include "runtime/executor.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "common/errors.h"
#include "runtime/heap.h"

namespace poptorch_emu {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Gives the current thread a number of threads for one operation, and back what it had.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int64_t count) : before_(at::get_num_threads()) {
    if (before_ != count) at::set_num_threads(static_cast<int>(count));
  }
  ~IntraOpThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  int before_;
};

}  // namespace

Executor::Executor(std::shared_ptr<const Program> program, ExecutorOptions options)
    : program_(std::move(program)),
      options_(std::move(options)),
      memory_(*program_, options_.num_replicas),
      accumulators_(*program_, options_.num_replicas, remote_),
      peak_accumulator_bytes_(options_.num_replicas, 0) {
  if (options_.num_replicas < 1 || options_.num_workers < 1 ||
      static_cast<int64_t>(options_.input_group_of_replica.size()) != options_.num_replicas) {
    throw Error(
        "An executor needs at least one replica and one worker, and for each replica the group "
        "of inputs that it reads.");
  }
  limit_heap_growth();
  num_groups_ = 1 + *std::max_element(options_.input_group_of_replica.begin(),
                                      options_.input_group_of_replica.end());
  find_ends();
  queues_.resize(program_->links.size());
  for (auto& of_replica : queues_) of_replica.resize(options_.num_replicas);
  for (const Segment& segment : program_->segments) {
    std::vector<std::unique_ptr<Frame>> of_replica;
    for (int64_t r = 0; r < options_.num_replicas; ++r) {
      of_replica.push_back(
          std::make_unique<Frame>(segment, program_->numerics.checks_floating_point,
                                  [this](const std::string& name, std::vector<at::Tensor> tensors) {
                                    return call_host(name, std::move(tensors));
                                  }));
    }
    frames_.push_back(std::move(of_replica));
  }
  for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
    for (size_t ipu = 0; ipu < program_->schedule.size(); ++ipu) {
      ipus_.push_back({replica, static_cast<int64_t>(ipu)});
    }
  }
  for (int64_t worker = 1; worker < options_.num_workers; ++worker) {
    threads_.emplace_back([this, worker] { serve(worker); });
  }
}

Executor::~Executor() {
  {
    std::lock_guard lock(pool_mutex_);
    is_closing_ = true;
  }
  pool_wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::write_variable(VariableId id, int64_t replica, const at::Tensor& value) {
  memory_.write(id, replica, value);
}

at::Tensor Executor::read_variable(VariableId id, int64_t replica) const {
  return memory_.read(id, replica);
}

void Executor::set_scalar(ScalarId id, double value) { memory_.set_scalar(id, value); }

void Executor::set_rng_state(int64_t seed, int64_t counter) {
  seed_ = seed;
  counter_ = counter;
}

std::vector<Event> Executor::take_events() { return std::exchange(events_, {}); }

std::vector<int64_t> Executor::peak_link_items() const {
  std::vector<int64_t> peaks;
  for (const auto& of_replica : queues_) {
    int64_t peak = 0;
    for (const LinkQueue& link : of_replica) peak = std::max(peak, link.peak);
    peaks.push_back(peak);
  }
  return peaks;
}

std::vector<at::Tensor> Executor::run(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  try {
    prepare(inputs, num_windows);
  } catch (...) {
    end_stream_of_call();
    throw;
  }
  {
    const IntraOpThreads threads(options_.num_intra_op_threads);
    if (!threads_.empty()) {
      std::lock_guard lock(pool_mutex_);
      ++generation_;
      num_busy_ = static_cast<int64_t>(threads_.size());
    }
    pool_wake_.notify_all();
    work(0);
    std::unique_lock lock(pool_mutex_);
    pool_idle_.wait(lock, [this] { return num_busy_ == 0; });
  }
  std::vector<at::Tensor> results;
  for (OutputCollector& output : outputs_) results.push_back(output.take());
  clean_up();
  end_stream_of_call();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  counter_ += num_windows * program_->micro_batches_per_window;
  return results;
}

void Executor::find_ends() {
  first_reader_.assign(program_->inputs.size(), SegmentId{-1});
  is_window_output_.assign(program_->outputs.size(), false);
  for (size_t id = 0; id < program_->segments.size(); ++id) {
    const Segment& segment = program_->segments[id];
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

void Executor::prepare(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  if (inputs.size() != program_->inputs.size()) {
    throw Error("The program takes " + std::to_string(program_->inputs.size()) +
                " inputs, but was given " + std::to_string(inputs.size()) + ".");
  }
  if (num_windows < 1) {
    throw Error("A call runs at least 1 window, not " + std::to_string(num_windows) + ".");
  }
  const int64_t num_micro_batches = num_windows * program_->micro_batches_per_window;
  const int64_t blocks = num_micro_batches * num_groups_;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!program_->inputs[i].is_batched) continue;
    if (inputs[i].dim() == 0 || inputs[i].size(0) % blocks != 0) {
      throw Error("Input " + program_->inputs[i].name + " is " + describe(inputs[i]) +
                  ", but its first dimension must be a multiple of " + std::to_string(blocks) +
                  ".");
    }
  }
  inputs_ = inputs;
  outputs_.clear();
  for (size_t id = 0; id < program_->outputs.size(); ++id) {
    outputs_.emplace_back(program_->outputs[id],
                          is_window_output_[id] ? num_windows : num_micro_batches,
                          options_.num_replicas);
  }
  num_windows_ = num_windows;
  prepare_spans();
  window_ = -1;
  is_done_ = false;
  begin_stream_of_call(num_micro_batches);
  caller_ = std::this_thread::get_id();
  caller_state_.emplace();
  finish_window();
}

void Executor::prepare_spans() {
  const int64_t now = now_ns();
  const int64_t pieces = num_windows_ * program_->micro_batches_per_window * options_.num_replicas;
  input_spans_.assign(program_->inputs.size(), std::vector<Span>(pieces, Span{now, now}));
  output_spans_.clear();
  for (const OutputCollector& output : outputs_) {
    output_spans_.emplace_back(output.num_pieces(), Span{now, now});
  }
}

void Executor::clean_up() {
  inputs_.clear();
  outputs_.clear();
  caller_state_.reset();
  if (!error_) return;
  for (auto& of_replica : queues_) {
    for (LinkQueue& link : of_replica) link.items.clear();
  }
  for (auto& of_replica : frames_) {
    for (auto& frame : of_replica) frame->clear();
  }
  accumulators_.clear();
  memory_.roll_back();
  num_running_ = 0;
  for (VirtualIpu& ipu : ipus_) ipu.is_running = false;
}

void Executor::serve(int64_t worker) {
  int64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(pool_mutex_);
      pool_wake_.wait(lock, [&] { return is_closing_ || generation_ != seen; });
      if (is_closing_) return;
      seen = generation_;
    }
    {
      const IntraOpThreads threads(options_.num_intra_op_threads);
      work(worker);
    }
    std::lock_guard lock(pool_mutex_);
    if (--num_busy_ == 0) pool_idle_.notify_all();
  }
}

void Executor::work(int64_t worker) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::unique_lock lock(mutex_);
  while (!is_done_ && !error_) {
    if (worker == 0 && serve_host_request(lock)) continue;
    VirtualIpu* ipu = find_ready();
    if (ipu != nullptr) {
      run_actions(*ipu, worker, lock);
      continue;
    }
    if (num_running_ == 0 && !is_paused()) {
      try {
        report_deadlock();
      } catch (...) {
        error_ = std::current_exception();
      }
      break;
    }
    ++num_waiting_;
    progress_.wait(lock);
    --num_waiting_;
  }
  progress_.notify_all();
}

void Executor::run_actions(VirtualIpu& ipu, int64_t worker, std::unique_lock<std::mutex>& lock) {
  ipu.is_running = true;
  ++num_running_;
  do {
    const Action action = next_action(ipu);
    const int64_t window = window_;
    take_inputs(ipu, action);
    lock.unlock();
    const int64_t start_ns = is_tracing_ ? now_ns() : 0;
    std::exception_ptr error;
    try {
      execute(ipu, action);
    } catch (...) {
      error = std::current_exception();
    }
    const int64_t end_ns = is_tracing_ ? now_ns() : 0;
    lock.lock();
    if (error) {
      if (!error_) error_ = error;
      break;
    }
    if (is_tracing_) {
      events_.push_back({ipu.replica, ipu.ipu, action.segment.value, window, action.micro_batch,
                         worker, start_ns, end_ns});
    }
    give_outputs(ipu, action);
    note_results(ipu, action);
    ipu.is_running = false;
    advance(ipu);
    if (num_waiting_ > 0) progress_.notify_all();
    const bool is_wanted = worker == 0 && !host_requests_.empty();
    ipu.is_running = !is_done_ && !error_ && !is_wanted && is_ready(ipu);
  } while (ipu.is_running);
  ipu.is_running = false;
  --num_running_;
  if (num_waiting_ > 0) progress_.notify_all();
}

const Action& Executor::next_action(const VirtualIpu& ipu) const {
  return program_->schedule[ipu.ipu][ipu.position];
}

Executor::LinkQueue& Executor::queue(LinkId id, int64_t replica) {
  return queues_[id.value][replica];
}

Executor::VirtualIpu* Executor::find_ready() {
  for (VirtualIpu& ipu : ipus_) {
    if (!ipu.is_running && is_ready(ipu)) return &ipu;
  }
  return nullptr;
}

bool Executor::is_ready(const VirtualIpu& ipu) {
  if (is_paused() || ipu.position == program_->schedule[ipu.ipu].size()) return false;
  const Segment& segment = program_->at(next_action(ipu).segment);
  if (segment.kind == SegmentKind::kWindow) {
    // Nothing of this window may read weights or add gradients any more.
    if (micro_batch_actions_left_ > 0 || !have_peers_arrived(ipu)) return false;
  } else if (segment.is_collective && !have_peers_arrived(ipu)) {
    return false;
  }
  return has_links_ready(segment, ipu.replica);
}

// Whether every replica of this IPU is through with what comes before the next action.
bool Executor::have_peers_arrived(const VirtualIpu& ipu) const {
  return std::all_of(ipus_.begin(), ipus_.end(), [&ipu](const VirtualIpu& other) {
    return other.ipu != ipu.ipu || other.position >= ipu.position;
  });
}

// Whether this replica runs the next action; a window segment may be run by others.
bool Executor::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_->at(next_action(ipu).segment);
  return segment.kind == SegmentKind::kMicroBatch ||
         std::find(segment.runners.begin(), segment.runners.end(), ipu.replica) !=
             segment.runners.end();
}

void Executor::move_to(VirtualIpu& ipu, size_t position) {
  const size_t end = program_->schedule[ipu.ipu].size();
  ipu.position = position;
  while (ipu.position < end && !takes_part(ipu)) ++ipu.position;
  if (ipu.position == end) ++ipus_at_end_;
}

bool Executor::has_links_ready(const Segment& segment, int64_t replica) {
  for (LinkId id : segment.incoming) {
    if (queue(id, replica).items.empty()) return false;
  }
  for (LinkId id : segment.outgoing) {
    const int64_t held = static_cast<int64_t>(queue(id, replica).items.size());
    if (held >= program_->links[id.value].capacity) return false;
  }
  return true;
}

void Executor::take_inputs(const VirtualIpu& ipu, const Action& action) {
  Frame& frame = *frames_[action.segment.value][ipu.replica];
  for (LinkId id : program_->at(action.segment).incoming) {
    LinkQueue& link = queue(id, ipu.replica);
    const std::vector<RegisterId>& targets = program_->links[id.value].consumer_registers;
    for (size_t i = 0; i < targets.size(); ++i) {
      frame[targets[i]] = std::move(link.items.front()[i]);
    }
    link.items.pop_front();
  }
}

std::vector<int64_t> Executor::receivers(const Link& link, int64_t replica) const {
  const Segment& producer = program_->at(link.producer);
  const bool speaks_for_all = producer.kind == SegmentKind::kWindow && producer.runners.size() == 1;
  return speaks_for_all ? program_->at(link.consumer).runners : std::vector<int64_t>{replica};
}

void Executor::give_outputs(const VirtualIpu& ipu, const Action& action) {
  Frame& frame = *frames_[action.segment.value][ipu.replica];
  for (LinkId id : program_->at(action.segment).outgoing) {
    const Link& link = program_->links[id.value];
    std::vector<at::Tensor> item;
    for (RegisterId source : link.producer_registers) item.push_back(frame[source]);
    for (int64_t receiver : receivers(link, ipu.replica)) {
      LinkQueue& target = queue(id, receiver);
      target.items.push_back(item);
      target.peak = std::max(target.peak, static_cast<int64_t>(target.items.size()));
    }
  }
  frame.clear();
}

void Executor::advance(VirtualIpu& ipu) {
  if (program_->at(next_action(ipu).segment).kind == SegmentKind::kMicroBatch) {
    --micro_batch_actions_left_;
  }
  move_to(ipu, ipu.position + 1);
  if (ipus_at_end_ == static_cast<int64_t>(ipus_.size())) finish_window();
}

void Executor::finish_window() {
  for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
    int64_t& peak = peak_accumulator_bytes_[replica];
    peak = std::max(peak, accumulators_.bytes(replica));
  }
  accumulators_.clear();
  memory_.commit();
  ++window_;
  if (window_ == num_windows_) {
    is_done_ = true;
    return;
  }
  ipus_at_end_ = 0;
  micro_batch_actions_left_ = 0;
  for (VirtualIpu& ipu : ipus_) {
    move_to(ipu, 0);
    for (const Action& action : program_->schedule[ipu.ipu]) {
      if (program_->at(action.segment).kind == SegmentKind::kMicroBatch) {
        ++micro_batch_actions_left_;
      }
    }
  }
}

void Executor::report_deadlock() const {
  std::ostringstream out;
  out << "The schedule cannot go on: no virtual IPU is ready.";
  for (const VirtualIpu& ipu : ipus_) {
    out << " Replica " << ipu.replica << ", IPU " << ipu.ipu << ": ";
    if (ipu.position == program_->schedule[ipu.ipu].size()) {
      out << "at the end.";
    } else {
      const Action& action = next_action(ipu);
      out << "waits to run '" << program_->at(action.segment).name << "' for micro-batch "
          << action.micro_batch << ".";
    }
  }
  throw Error(out.str());
}

int64_t Executor::global_micro_batch(const Action& action) const {
  return window_ * program_->micro_batches_per_window + action.micro_batch;
}

void Executor::execute(const VirtualIpu& ipu, const Action& action) {
  const Segment& segment = program_->at(action.segment);
  Frame& frame = *frames_[action.segment.value][ipu.replica];
  try {
    for (AccumulatorId id : segment.reductions) accumulators_.reduce(id, ipu.replica);
    fetch_remote(frame, segment);
    for (const Load& item : segment.loads) load(frame, item, ipu, action);
    frame.run(action.micro_batch, ipu.replica);
    for (const Store& item : segment.stores) store(frame, item, ipu, action);
    send_remote(frame, segment);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(segment, action, ipu, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(segment, action, ipu, error.what());
  }
}

// Values that other links carry too become the same copies there, with the same numbers.
void Executor::send_remote(Frame& frame, const Segment& segment) {
  for (LinkId id : segment.outgoing) {
    const Link& link = program_->links[id.value];
    if (!link.is_remote) continue;
    for (RegisterId source : link.producer_registers) {
      frame[source] = remote_.store(frame[source]);
    }
  }
}

void Executor::fetch_remote(Frame& frame, const Segment& segment) {
  for (LinkId id : segment.incoming) {
    const Link& link = program_->links[id.value];
    if (!link.is_remote) continue;
    for (RegisterId target : link.consumer_registers) {
      frame[target] = remote_.load(frame[target]);
    }
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
    target = source->is_shard ? memory_.variable_shard(source->variable, ipu.replica)
                              : memory_.variable(source->variable, ipu.replica);
    if (program_->variables[source->variable.value].is_remote) target = remote_.load(target);
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
    if (program_->accumulators[source->accumulator.value].is_remote) target = remote_.load(target);
  } else {
    target = rng_for(ipu, micro_batch);
  }
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
    at::Tensor value = is_own ? source : source.clone();
    if (program_->variables[target->variable.value].is_remote) value = remote_.store(value);
    if (target->is_shard) {
      memory_.assign_shard(target->variable, ipu.replica, std::move(value));
    } else {
      memory_.assign(target->variable, ipu.replica, std::move(value));
    }
  } else if (const auto* target = std::get_if<Accumulate>(&store.target)) {
    at::Tensor value = store.is_last_use ? std::move(source) : source;
    accumulators_.add(target->accumulator, ipu.replica, std::move(value), action.micro_batch,
                      rng_for(ipu, global_micro_batch(action)));
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
