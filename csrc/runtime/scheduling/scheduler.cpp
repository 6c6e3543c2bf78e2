#include "runtime/scheduling/scheduler.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Spinning time of a waiting worker; most actions end sooner (assumed).
constexpr int64_t kSpinNs = 50'000;

int64_t micro_batch_actions_of(const Program& program, int64_t num_replicas) {
  int64_t num_actions = 0;
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::kMicroBatch) continue;
    num_actions += (segment.relays() ? 1 : num_replicas) * program.runs_per_window();
  }
  return num_actions;
}

}  // namespace

Scheduler::Scheduler(const Program& program, const SchedulerOptions& options,
                     const HostCalls& host_calls, const ResultStream& stream, SharedLoops& loops)
    : program_(program),
      host_calls_(host_calls),
      stream_(stream),
      loops_(loops),
      num_workers_(options.num_workers),
      progress_(options.num_workers, kSpinNs),
      choice_(options.choice),
      lists_(program, options.num_replicas, /*has_micro_batches=*/options.follows_lists),
      num_micro_batch_actions_(micro_batch_actions_of(program, options.num_replicas)) {
  if (!options.follows_lists) runner_.emplace(program, options.num_replicas, options.num_workers);
}

void Scheduler::begin_call(int64_t num_windows) {
  const Progress::Lock lock = progress_.lock();
  num_windows_ = num_windows;
  window_ = 0;
  is_over_ = false;
  begin_window();
}

std::exception_ptr Scheduler::end_call() {
  const Progress::Lock lock = progress_.lock();
  interruption_ = nullptr;
  if (!error_) return nullptr;
  lists_.clear();
  if (runner_) runner_->clear();
  num_running_ = 0;
  return std::exchange(error_, nullptr);
}

bool Scheduler::is_alone() const {
  const Progress::Lock lock = progress_.lock();
  return choice_.is_alone();
}

Task* Scheduler::take(int64_t worker) {
  Progress::Lock lock = progress_.lock();
  while (!is_over_ && !is_to_serve_host(worker)) {
    if (is_to_rest(worker)) {
      end_of_rest_.wait(lock);
      continue;
    }
    // Read only once: if a result is taken meanwhile, a failure to begin a task is no deadlock.
    const bool is_paused = stream_.is_full();
    if (Task* const task = is_paused ? nullptr : begin_next(worker)) {
      ++num_running_;
      return task;
    }
    const bool may_some_begin = runner_ && !are_micro_batches_done();
    if (num_running_ == 0 && !is_paused && !may_some_begin) {
      end_with(std::make_exception_ptr(
          Error("The schedule cannot go on: no virtual IPU is ready." + lists_.text())));
      break;
    }
    if (!is_paused && has_micro_batch(worker)) {
      lock.unlock();
      wait_until([&] { return runner_->is_ready(worker) || is_to_serve_host(worker); });
      lock.lock();
    } else {
      progress_.wait_for_change(lock,
                                /*wakes_regularly=*/worker == 0 && host_calls_.checks_interrupts(),
                                [this] { return loops_.help(); });
    }
  }
  return nullptr;
}

bool Scheduler::wait_for_turn(const Task& task) {
  if (!is_in_flight(task)) return !is_over_;
  return runner_->has_turn(task) || wait_until([&] { return runner_->has_turn(task); });
}

bool Scheduler::wait_until(const std::function<bool()>& holds) {
  progress_.wait_until([&] { return is_over_ || holds(); });
  return !is_over_;
}

void Scheduler::suspend(Task& task) {
  const Progress::Lock lock = progress_.lock();
  lists_.suspend(task);
  progress_.announce();
  --num_running_;
}

Scheduler::Next Scheduler::finish(Task*& task, int64_t worker) {
  const bool was_in_flight = is_in_flight(*task);
  if (was_in_flight && go_on_in_flight(*task)) return Next::kGoOn;
  const Progress::Lock lock = progress_.lock();
  if (!was_in_flight) lists_.finish(*task);
  note_done(*task);
  if (are_micro_batches_done() && lists_.are_done()) return Next::kEndWindow;
  progress_.announce();
  if (!is_over_ && !is_to_serve_host(worker) && !stream_.is_full()) {
    Task* const next = was_in_flight
                           ? begin_next(worker)
                           : prepared(lists_.begin_next(*task, are_micro_batches_done()), worker);
    if (next != nullptr) {
      task = next;
      return Next::kGoOn;
    }
  }
  --num_running_;
  return Next::kAnother;
}

void Scheduler::begin_next_window() {
  const Progress::Lock lock = progress_.lock();
  --num_running_;
  ++window_;
  choice_.note(now_ns() - window_begun_ns_, busy_ns_ / std::max<int64_t>(num_done_, 1));
  if (interruption_ || window_ == num_windows_) {
    end_with(std::exchange(interruption_, nullptr));
  } else {
    begin_window();
    progress_.announce();
  }
}

void Scheduler::fail(std::exception_ptr error) {
  const Progress::Lock lock = progress_.lock();
  --num_running_;
  end_with(std::move(error));
}

bool Scheduler::interrupt(std::exception_ptr error) {
  const Progress::Lock lock = progress_.lock();
  if (are_micro_batches_done() && !is_over_) {
    interruption_ = std::move(error);
    return false;
  }
  end_with(std::move(error));
  return true;
}

void Scheduler::wake() {
  const Progress::Lock lock = progress_.lock();
  progress_.announce();
}

std::vector<LinkPeak> Scheduler::link_peaks() const {
  const Progress::Lock lock = progress_.lock();
  return lists_.link_peaks();
}

// Replaces a task in flight by the next one of its micro-batch; returns false if the worker must
// not continue immediately, although the task is done. No lock is needed, because the actions
// belong to their worker, and another worker reads only the count.
bool Scheduler::go_on_in_flight(Task& task) {
  const int64_t worker = task.worker;
  runner_->finish_action(task);
  progress_.note();
  if (is_over_ || is_to_serve_host(worker) || stream_.is_full()) return false;
  if (!runner_->has_micro_batch(worker) || !runner_->is_ready(worker)) return false;
  prepared(&runner_->begin_action(worker), worker);
  return true;
}

// Counts an action of the lists, or all actions of a micro-batch that has ended.
void Scheduler::note_done(const Task& task) {
  int64_t num_actions = 1, begun_ns = task.begun_ns;
  if (is_in_flight(task)) {
    if (runner_->has_micro_batch(task.worker)) return;
    num_actions = runner_->num_actions();
    begun_ns = runner_->begun_ns(task.worker);
  }
  num_done_ += num_actions;
  busy_ns_ += now_ns() - begun_ns;
  if (program_.at(task.action.segment).kind == SegmentKind::kMicroBatch) {
    num_micro_batch_actions_left_ -= num_actions;
  }
}

// A worker stays with its micro-batch, also while that waits for its turn.
Task* Scheduler::begin_next(int64_t worker) {
  if (runner_ && !runner_->has_micro_batch(worker) && runner_->are_left() &&
      !stream_.is_too_early(micro_batch_of_call(runner_->next_micro_batch()), num_workers_)) {
    runner_->begin_micro_batch(worker);
  }
  if (has_micro_batch(worker)) {
    return runner_->is_ready(worker) ? prepared(&runner_->begin_action(worker), worker) : nullptr;
  }
  return prepared(lists_.begin_any(are_micro_batches_done()), worker);
}

// Stores in a task its worker and the number of its micro-batch in the call.
Task* Scheduler::prepared(Task* task, int64_t worker) const {
  if (task == nullptr) return nullptr;
  task->worker = worker;
  task->is_alone = choice_.is_alone();
  task->window = window_;
  task->micro_batch_of_call = micro_batch_of_call(task->action.micro_batch);
  return task;
}

void Scheduler::begin_window() {
  window_begun_ns_ = now_ns();
  num_done_ = busy_ns_ = 0;
  num_micro_batch_actions_left_ = num_micro_batch_actions_;
  if (!choice_.is_alone()) end_of_rest_.notify_all();
  if (runner_) runner_->begin_window();
  lists_.begin_window();
}

// Ends the call, with the first error if there is one.
void Scheduler::end_with(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  is_over_ = true;
  progress_.announce();
  end_of_rest_.notify_all();
}

}  // namespace poptorch_emu
