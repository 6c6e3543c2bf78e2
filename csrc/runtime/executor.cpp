#include "runtime/executor.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "common/errors.h"

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
      memory_(*program_, options_.num_replicas) {
  if (options_.num_replicas < 1 || options_.num_workers < 1 ||
      static_cast<int64_t>(options_.input_group_of_replica.size()) != options_.num_replicas) {
    throw Error(
        "An executor needs at least one replica and one worker, and for each replica the group "
        "of inputs that it reads.");
  }
  num_groups_ = 1 + *std::max_element(options_.input_group_of_replica.begin(),
                                      options_.input_group_of_replica.end());
  queues_.resize(program_->links.size());
  for (auto& of_replica : queues_) of_replica.resize(options_.num_replicas);
  for (const Segment& segment : program_->segments) {
    std::vector<std::unique_ptr<Frame>> of_replica;
    for (int64_t r = 0; r < options_.num_replicas; ++r) {
      of_replica.push_back(std::make_unique<Frame>(
          segment, [this](const std::string& name, std::vector<at::Tensor> tensors) {
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
  prepare(inputs, num_windows);
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
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  counter_ += num_windows * program_->micro_batches_per_window;
  return results;
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
  for (const Output& output : program_->outputs) {
    outputs_.emplace_back(output, num_micro_batches, options_.num_replicas);
  }
  num_windows_ = num_windows;
  window_ = -1;
  is_done_ = false;
  caller_ = std::this_thread::get_id();
  caller_state_.emplace();
  finish_window();
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
  memory_.clear_accumulators();
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
    if (num_running_ == 0) {
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
  if (ipu.position == program_->schedule[ipu.ipu].size()) return false;
  const Segment& segment = program_->at(next_action(ipu).segment);
  if (segment.kind == SegmentKind::kWindow) {
    // Replica 0 acts for all, when nothing of this window reads weights or adds gradients any more.
    if (ipu.replica != 0 || micro_batch_actions_left_ > 0) return false;
  }
  return has_links_ready(segment, ipu.replica);
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

void Executor::give_outputs(const VirtualIpu& ipu, const Action& action) {
  Frame& frame = *frames_[action.segment.value][ipu.replica];
  for (LinkId id : program_->at(action.segment).outgoing) {
    LinkQueue& link = queue(id, ipu.replica);
    std::vector<at::Tensor> item;
    for (RegisterId source : program_->links[id.value].producer_registers) {
      item.push_back(frame[source]);
    }
    link.items.push_back(std::move(item));
    link.peak = std::max(link.peak, static_cast<int64_t>(link.items.size()));
  }
  frame.clear();
}

void Executor::advance(VirtualIpu& ipu) {
  const bool is_window = program_->at(next_action(ipu).segment).kind == SegmentKind::kWindow;
  if (!is_window) --micro_batch_actions_left_;
  for (VirtualIpu& other : ipus_) {
    const bool moves = &other == &ipu || (is_window && other.ipu == ipu.ipu);
    if (moves && ++other.position == program_->schedule[other.ipu].size()) ++ipus_at_end_;
  }
  if (ipus_at_end_ == static_cast<int64_t>(ipus_.size())) finish_window();
}

void Executor::finish_window() {
  memory_.clear_accumulators();
  memory_.commit();
  ++window_;
  if (window_ == num_windows_) {
    is_done_ = true;
    return;
  }
  ipus_at_end_ = 0;
  micro_batch_actions_left_ = 0;
  for (VirtualIpu& ipu : ipus_) {
    ipu.position = 0;
    for (const Action& action : program_->schedule[ipu.ipu]) {
      if (program_->at(action.segment).kind == SegmentKind::kMicroBatch) {
        ++micro_batch_actions_left_;
      }
    }
    if (program_->schedule[ipu.ipu].empty()) ++ipus_at_end_;
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
  const int64_t micro_batch = global_micro_batch(action);
  try {
    for (const Load& item : segment.loads) load(frame, item, ipu, micro_batch);
    frame.run(action.micro_batch, ipu.replica);
    for (const Store& item : segment.stores) store(frame, item, ipu, action);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(segment, action, ipu, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(segment, action, ipu, error.what());
  }
}

void Executor::fail(const Segment& segment, const Action& action, const VirtualIpu& ipu,
                    const std::string& cause) const {
  throw Error("The loads or stores of segment '" + segment.name + "' failed for micro-batch " +
              std::to_string(action.micro_batch) + ", replica " + std::to_string(ipu.replica) +
              ": " + cause);
}

void Executor::load(Frame& frame, const Load& load, const VirtualIpu& ipu,
                    int64_t global_micro_batch) {
  at::Tensor& target = frame[load.target];
  if (const auto* source = std::get_if<LoadVariable>(&load.source)) {
    target = memory_.variable(source->variable, ipu.replica);
  } else if (const auto* source = std::get_if<LoadConstant>(&load.source)) {
    target = program_->constants[source->constant.value];
  } else if (const auto* source = std::get_if<LoadInput>(&load.source)) {
    target = rows_of(source->input, global_micro_batch, ipu.replica);
  } else if (const auto* source = std::get_if<LoadScalar>(&load.source)) {
    target = memory_.scalar(source->scalar);
  } else if (const auto* source = std::get_if<LoadAccumulator>(&load.source)) {
    target = memory_.reduced(source->accumulator);
  } else {
    target = at::empty({4}, at::TensorOptions(at::kLong));
    int64_t* state = target.mutable_data_ptr<int64_t>();
    state[0] = seed_;
    state[1] = counter_ + global_micro_batch;
    state[2] = ipu.replica;
    state[3] = 0;
  }
}

void Executor::store(Frame& frame, const Store& store, const VirtualIpu& ipu,
                     const Action& action) {
  at::Tensor& source = frame[store.source];
  if (const auto* target = std::get_if<StoreOutput>(&store.target)) {
    outputs_[target->output.value].add(source, global_micro_batch(action), ipu.replica);
  } else if (const auto* target = std::get_if<StoreVariable>(&store.target)) {
    // A tensor that shares its storage (an input's rows, a hyper-parameter, a view) is copied.
    const bool is_own = source.use_count() == 1 && source.storage().use_count() == 1;
    memory_.assign(target->variable, ipu.replica, is_own ? source : source.clone());
  } else if (const auto* target = std::get_if<Accumulate>(&store.target)) {
    at::Tensor value = store.is_last_use ? std::move(source) : source;
    memory_.accumulate(target->accumulator, ipu.replica, std::move(value), action.micro_batch);
  }
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
