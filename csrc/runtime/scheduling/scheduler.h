#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "common/shared_loops.h"
#include "program/program.h"
#include "runtime/executor/host_calls.h"
#include "runtime/executor/result_stream.h"
#include "runtime/scheduling/action_lists.h"
#include "runtime/scheduling/micro_batch_runner.h"
#include "runtime/scheduling/progress.h"
#include "runtime/scheduling/task.h"
#include "runtime/scheduling/worker_choice.h"

namespace poptorch_emu {

// Number of replicas and workers of a scheduler, whether one worker may run a window alone, and
// whether micro-batches follow the lists of the schedule instead of the program's path.
struct SchedulerOptions {
  int64_t num_replicas = 1;
  int64_t num_workers = 1;
  WorkerChoice::Among choice = WorkerChoice::Among::kNothing;
  bool follows_lists = true;
};

// Decides which worker runs which task next, and when a window and a call end.
//
// Workers take micro-batches through all segments unless these follow the lists; all other
// actions follow the lists of the schedule. No result depends on the assignment of tasks to
// workers. While one worker alone runs a window, as `WorkerChoice` may decide, the others rest.
//
// The scheduler owns the lists, the micro-batches in flight and the error of the call, behind one
// lock that no other class uses. Locks of the host calls and the stream are taken after it.
class Scheduler {
 public:
  // Next step of a worker after a task.
  enum class Next {
    kGoOn,       // continue with the task, now the next one of its micro-batch or IPU
    kAnother,    // call `take`
    kEndWindow,  // complete the window, then call `begin_next_window`
  };

  // Worker 0 interrupts its tasks for requests of `host_calls`. Nothing begins while `stream` is
  // full. A worker that waits for a task runs parts of `loops` of other workers.
  Scheduler(const Program& program, const SchedulerOptions& options, const HostCalls& host_calls,
            const ResultStream& stream, SharedLoops& loops);

  // Called by the thread that runs the call while no worker runs. `end_call` returns the error of
  // the call, if any, and drops the contents of links in that case.
  void begin_call(int64_t num_windows);
  std::exception_ptr end_call();

  // Returns whether one worker alone runs the current or the next window.
  bool is_alone() const;
  // Returns the number of complete windows of the last call.
  int64_t num_complete_windows() const { return window_; }

  // The following functions are for workers. `take` waits for a task and returns it. It returns
  // null when the call is over, or when worker 0 must serve the host.
  Task* take(int64_t worker);
  bool is_over() const { return is_over_; }
  // Waits until earlier micro-batches have left the task's segment, if required. Returns false if
  // the call ends first; the task must then be abandoned.
  bool wait_for_turn(const Task& task);
  // Waits until `holds` returns true, after a change that another worker reports by `note`. Returns
  // false if the call ends first.
  bool wait_until(const std::function<bool()>& holds);
  void note() { progress_.note(); }
  // Suspends a task that waits for other replicas; another worker may resume it.
  void suspend(Task& task);
  // Finishes a task and pushes its results to its links. With `kGoOn`, `task` becomes the next one.
  // With `kEndWindow` nothing else can begin.
  Next finish(Task*& task, int64_t worker);
  void begin_next_window();
  // Ends the call because a task failed, with the first error of a task, if any.
  void fail(std::exception_ptr error);
  // Ends the call although no task failed: immediately, or after the update if parts of it may have
  // changed weights in place. Returns true if immediately.
  bool interrupt(std::exception_ptr error);

  // Called by any thread: makes waiting workers look again after host calls or the stream changed.
  void wake();
  // Same as `wake`, but only for sleeping workers, because spinning ones wait for tasks only.
  void wake_sleepers() { progress_.wake_sleepers(); }

  std::vector<LinkPeak> link_peaks() const;

 private:
  // The functions below are called with the lock held.
  bool is_to_serve_host(int64_t worker) const { return worker == 0 && host_calls_.has_requests(); }
  bool is_to_rest(int64_t worker) const { return worker != 0 && choice_.is_alone(); }
  bool has_micro_batch(int64_t worker) const { return runner_ && runner_->has_micro_batch(worker); }
  int64_t micro_batch_of_call(int64_t micro_batch) const {
    return window_ * program_.micro_batches_per_window + micro_batch * program_.joined;
  }
  bool are_micro_batches_done() const { return num_micro_batch_actions_left_ == 0; }
  Task* begin_next(int64_t worker);
  Task* prepared(Task* task, int64_t worker) const;
  void note_done(const Task& task);
  void begin_window();
  void end_with(std::exception_ptr error);

  // The functions below need no lock, because `window_` and `choice_` only change while no
  // micro-batch is in flight.
  bool is_in_flight(const Task& task) const {
    return runner_ && program_.at(task.action.segment).kind == SegmentKind::kMicroBatch;
  }
  bool go_on_in_flight(Task& task);

  const Program& program_;
  const HostCalls& host_calls_;
  const ResultStream& stream_;
  SharedLoops& loops_;
  const int64_t num_workers_;

  Progress progress_;
  std::condition_variable_any end_of_rest_;
  WorkerChoice choice_;
  std::optional<MicroBatchRunner> runner_;  // empty if micro-batches follow the lists
  ActionLists lists_;
  const int64_t num_micro_batch_actions_;  // number in a window
  int64_t num_windows_ = 0;
  int64_t window_ = 0;
  int64_t num_micro_batch_actions_left_ = 0;  // number left in this window
  int64_t window_begun_ns_ = 0;
  int64_t num_done_ = 0;  // completed actions of this window, and their total time
  int64_t busy_ns_ = 0;
  int64_t num_running_ = 0;  // running tasks; a waiting micro-batch has none
  std::exception_ptr error_;
  std::exception_ptr interruption_;  // error of the call after this window

  std::atomic<bool> is_over_ = false;  // changed with the lock
};

}  // namespace poptorch_emu
