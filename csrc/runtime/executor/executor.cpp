#include "runtime/executor/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "common/errors.h"
#include "common/floating_point_modes.h"
#include "common/sharing.h"

namespace poptorch_emu {
namespace {

WorkerChoice::Among choice_of(const ExecutorOptions& options) {
  // A worker that waits for other processes must not be the only one.
  if (options.ring != nullptr) return WorkerChoice::Among::kNothing;
  if (options.num_workers > 1) return WorkerChoice::Among::kShortActions;
  return options.num_intra_op_threads > 1 ? WorkerChoice::Among::kAllActions
                                          : WorkerChoice::Among::kNothing;
}

// Returns `program`. Throws `Error` if it cannot run with these options.
std::shared_ptr<const Program> fitting(std::shared_ptr<const Program> program,
                                       const ExecutorOptions& options) {
  const std::vector<int64_t>& groups = options.input_group_of_replica;
  if (options.num_replicas < 1 || options.num_workers < 1 || options.num_intra_op_threads < 1 ||
      static_cast<int64_t>(groups.size()) != options.num_replicas ||
      *std::min_element(groups.begin(), groups.end()) < 0) {
    throw Error(
        "An executor needs at least one replica and one worker, at least one thread for an "
        "operation, and for each replica the group of inputs that it reads, counted from 0; it "
        "was given " +
        std::to_string(options.num_replicas) + " replicas, " + std::to_string(options.num_workers) +
        " workers, " + std::to_string(options.num_intra_op_threads) + " threads and the groups " +
        describe(groups) + ".");
  }
  program->check_replicas(options.num_replicas, options.ring != nullptr);
  return program;
}

// Calls MKL's vector functions, which PyTorch uses, once on a single thread, because they
// initialise themselves in their first call. If several threads made it at the same time, one of
// them could get far less exact numbers.
void make_vector_functions_ready() {
  const at::NoGradGuard no_grad;
  at::sqrt(at::ones({64}, at::kFloat));
  at::sqrt(at::ones({64}, at::kDouble));
}

}  // namespace

Executor::Executor(std::shared_ptr<const Program> program, ExecutorOptions options)
    : program_(fitting(std::move(program), options)),
      options_(std::move(options)),
      state_(*program_, options_),
      peak_accumulator_bytes_(options_.num_replicas, 0),
      host_calls_([this] { scheduler_.wake(); }),
      loops_([this] { scheduler_.wake_sleepers(); }),
      scheduler_(*program_,
                 {options_.num_replicas, options_.num_workers, choice_of(options_),
                  options_.follows_lists || program_->path.empty()},
                 host_calls_, stream_, loops_),
      interpreter_(
          *program_, options_, state_,
          {[this](const std::string& name, std::vector<at::Tensor> tensors) {
             return host_calls_.call(name, std::move(tensors));
           },
           [this](const std::function<bool()>& holds) { return scheduler_.wait_until(holds); },
           [this] { scheduler_.note(); }}),
      pool_(options_.num_workers, [this](int64_t worker) {
        const FloatingPointModes modes(modes_);
        const IntraOpThreads threads(options_.num_intra_op_threads);
        const SharedLoops::Member member(loops_);
        work(worker);
      }) {
  make_vector_functions_ready();
}

void Executor::begin_stream(int64_t max_unread, int64_t micro_batches_per_step,
                            int64_t num_outputs) {
  const auto available = static_cast<int64_t>(program_->outputs.size());
  if (max_unread < 1 || micro_batches_per_step < 1) {
    throw Error("A stream holds at least 1 result, of at least 1 micro-batch.");
  }
  if (num_outputs < 1 || num_outputs > available) {
    throw Error("A stream of " + std::to_string(num_outputs) +
                " outputs was asked for, but the program has " + std::to_string(available) +
                "; at least 1 is needed.");
  }
  for (int64_t id = 0; id < num_outputs; ++id) {
    if (program_->outputs[id].mode != OutputMode::kAll || interpreter_.is_of_window({id})) {
      throw Error("Output " + std::to_string(id) +
                  " cannot be streamed: it must have the mode All and come from micro-batches.");
    }
  }
  modes_of_stream_ = floating_point_modes();
  stream_.begin(max_unread, micro_batches_per_step, num_outputs);
}

std::vector<at::Tensor> Executor::take_result() {
  std::vector<at::Tensor> result = stream_.take();
  scheduler_.wake();
  return result;
}

TakenResults Executor::take_results() {
  TakenResults results = stream_.take_all();
  scheduler_.wake();
  return results;
}

TakenResults Executor::wait_for_results(int64_t linger_microseconds) {
  TakenResults results = stream_.wait_for_all(std::chrono::microseconds(linger_microseconds));
  scheduler_.wake();
  return results;
}

void Executor::end_stream() {
  stream_.end();
  scheduler_.wake();
}

std::vector<at::Tensor> Executor::run(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  // The user's autocast does not apply to the CPU's computations for the device.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  modes_ = stream_.is_open() ? modes_of_stream_ : floating_point_modes();
  const FloatingPointModes modes(modes_);
  try {
    prepare(inputs, num_windows);
  } catch (...) {
    stream_.end_call();
    throw;
  }
  try {
    pool_.run(scheduler_.is_alone());
  } catch (...) {
    give_up(std::current_exception());
  }
  std::vector<at::Tensor> results = interpreter_.end_call();
  host_calls_.end_call();
  // Random numbers of complete windows are used up, even if a later window has failed.
  interpreter_.random_state().advance(scheduler_.num_complete_windows() *
                                      program_->micro_batches_per_window);
  const std::exception_ptr error = scheduler_.end_call();
  if (error) {
    interpreter_.clear();
    state_.accumulators.clear();
    state_.memory.roll_back();
  }
  stream_.end_call();
  if (error) std::rethrow_exception(error);
  return results;
}

void Executor::prepare(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  interpreter_.check(inputs, num_windows);
  prepare_values();
  stream_.begin_call(num_windows * program_->micro_batches_per_window, options_.num_replicas);
  interpreter_.begin_call(inputs, num_windows);
  host_calls_.begin_call();
  scheduler_.begin_call(num_windows);
}

// Computes prepared values as a worker does, so that they have the same bits as in a micro-batch.
void Executor::prepare_values() {
  const IntraOpThreads threads(options_.num_intra_op_threads);
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  interpreter_.prepare();
}

void Executor::work(int64_t worker) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  while (!scheduler_.is_over()) {
    if (worker == 0 && serve()) continue;
    if (Task* task = scheduler_.take(worker)) run_tasks(task, worker);
  }
}

// Serves one request to the host, if any; returns whether there was one.
bool Executor::serve() {
  try {
    return host_calls_.serve();
  } catch (...) {
    if (scheduler_.interrupt(std::current_exception())) host_calls_.cancel();
    return true;
  }
}

void Executor::run_tasks(Task* task, int64_t worker) {
  try {
    Scheduler::Next next = Scheduler::Next::kGoOn;
    while (next == Scheduler::Next::kGoOn) next = run_task(task, worker);
    if (next == Scheduler::Next::kEndWindow) {
      end_window();
      scheduler_.begin_next_window();
      // Only worker 0 calls the others; another worker runs only if they have been called already.
      if (worker == 0 && !scheduler_.is_alone()) pool_.call_others();
    }
  } catch (...) {
    give_up(std::current_exception());
  }
}

// Ends the call with an error, and all waits for other processes.
void Executor::give_up(std::exception_ptr error) {
  scheduler_.fail(std::move(error));
  if (options_.ring != nullptr) options_.ring->peers().cancel("The model failed in this process");
  host_calls_.cancel();
}

// Runs a task, and replaces it by the next one if the worker continues with its micro-batch or IPU.
Scheduler::Next Executor::run_task(Task*& running, int64_t worker) {
  const Task& task = *running;
  const Sharing sharing(!task.is_alone);
  const int64_t start_ns = events_.is_on() ? now_ns() : 0;
  switch (interpreter_.run(*running, [&] { return scheduler_.wait_for_turn(task); })) {
    case Outcome::kAbandoned:
      scheduler_.fail(nullptr);
      return Scheduler::Next::kAnother;
    case Outcome::kWaits:
      scheduler_.suspend(*running);
      return Scheduler::Next::kAnother;
    case Outcome::kDone:
      break;
  }
  if (events_.is_on()) {
    // The duration of an action that has waited for other replicas includes the wait.
    note_events(task, task.num_collectives > 0 ? task.begun_ns : start_ns);
  }
  stream_.add_pieces(program_->at(task.action.segment), task.micro_batch_of_call,
                     interpreter_.outputs());
  return scheduler_.finish(running, worker);
}

// Divides the time of an action equally among its micro-batches.
void Executor::note_events(const Task& task, int64_t start_ns) {
  const bool is_of_window = program_->at(task.action.segment).kind == SegmentKind::kWindow;
  const int64_t count = is_of_window ? 1 : program_->joined;
  const int64_t share_ns = (now_ns() - start_ns) / count;
  for (int64_t piece = 0; piece < count; ++piece) {
    const int64_t begin_ns = start_ns + piece * share_ns;
    events_.add({task.replica, task.ipu, task.action.segment.value, task.window,
                 task.action.micro_batch * count + piece, task.worker, begin_ns,
                 begin_ns + share_ns});
  }
}

// Completes a window; nothing else runs at this time.
void Executor::end_window() {
  for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
    int64_t& peak = peak_accumulator_bytes_[replica];
    peak = std::max(peak, state_.accumulators.bytes(replica));
  }
  state_.accumulators.clear();
  state_.memory.commit();
  interpreter_.forget_replaced();
}

}  // namespace poptorch_emu
