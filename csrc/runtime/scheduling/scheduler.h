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
#include "runtime/scheduling/micro_batch_order.h"
#include "runtime/scheduling/micro_batch_runner.h"
#include "runtime/scheduling/progress.h"
#include "runtime/scheduling/task.h"
#include "runtime/scheduling/worker_choice.h"

namespace poptorch_emu {

// How many replicas and workers a scheduler has, and whether one worker may run a window alone.
struct SchedulerOptions {
  int64_t num_replicas = 1;
  int64_t num_workers = 1;
  WorkerChoice::Among choice = WorkerChoice::Among::kNothing;
};

// Decides which worker runs what next, and when a window and a call are over.
//
// Workers take micro-batches through all segments where `MicroBatchOrder` has a path; all else goes
// by the lists of the schedule. No result depends on which worker runs what when. While one worker
// alone runs a window, as `WorkerChoice` may decide, the others rest.
//
// Owns the lists, the micro-batches in flight and the error of the call, all behind one lock that
// no other class sees. It asks the host calls and the stream, whose own locks come after this one.
class Scheduler {
 public:
  // What a worker does after a task.
  enum class Next {
    kGoOn,       // the task, which is the next one of its micro-batch or its IPU now
    kAnother,    // whatever `take` gives
    kEndWindow,  // what belongs to the end of a window, then `begin_next_window`
  };

  // Worker 0 leaves its tasks for the requests of `host_calls`. Nothing begins while `stream` is
  // full. A worker that waits for a task runs parts of the `loops` of others.
  Scheduler(const Program& program, const MicroBatchOrder& order, const SchedulerOptions& options,
            const HostCalls& host_calls, const ResultStream& stream, SharedLoops& loops);

  // By the thread that runs the call, when no worker is at work. The second returns the error of
  // the call, if there was one, and drops what is in the links then.
  void begin_call(int64_t num_windows);
  std::exception_ptr end_call();

  // Whether one worker alone runs the current or the next window.
  bool is_alone() const;
  // Of the last call.
  int64_t num_complete_windows() const { return window_; }

  // The following are for workers. Waits until there is a task, and returns it; returns nothing
  // when the call is over, or when worker 0 is to serve the host.
  Task* take(int64_t worker);
  bool is_over() const { return is_over_; }
  // Waits until the micro-batches before have left the task's segment, where they must; false if
  // the call is over before, and the task is not to be done any more.
  bool wait_for_turn(const Task& task);
  // Waits until something `holds` that other workers bring about, and tell by `note`; false if the
  // call is over before.
  bool wait_until(const std::function<bool()>& holds);
  void note() { progress_.note(); }
  // The task waits for other replicas; another worker may go on with it.
  void suspend(Task& task);
  // The task was done: its links get what it gave. With `kGoOn` it is replaced by the next one.
  // With `kEndWindow` nothing else can begin.
  Next finish(Task*& task, int64_t worker);
  void begin_next_window();
  // The task was not done: the call is over, with the first such error, if there is one.
  void fail(std::exception_ptr error);
  // The call is to end, though no task has failed: at once, or, where parts of an update may have
  // changed weights in their place already, when the update is complete. True if at once.
  bool interrupt(std::exception_ptr error);

  // By any thread: has waiting workers look again, after the host calls or the stream have changed.
  void wake();
  // The same for workers that sleep, since the others wait for nothing but tasks.
  void wake_sleepers() { progress_.wake_sleepers(); }

  std::vector<LinkPeak> link_peaks() const;

 private:
  // All of these are called with the lock held.
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

  // These need no lock: `window_` and `choice_`, which they read, change only when no micro-batch
  // is in flight.
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
  std::optional<MicroBatchRunner> runner_;  // where micro-batches do not go by the lists
  ActionLists lists_;
  const int64_t num_micro_batch_actions_;  // of a window
  int64_t num_windows_ = 0;
  int64_t window_ = 0;
  int64_t num_micro_batch_actions_left_ = 0;  // of this window
  int64_t window_begun_ns_ = 0;
  int64_t num_done_ = 0;  // actions of this window, and the sum of their times
  int64_t busy_ns_ = 0;
  int64_t num_running_ = 0;  // tasks; a micro-batch that waits for its turn has none
  std::exception_ptr error_;
  std::exception_ptr interruption_;  // the error of the call when this window is over

  std::atomic<bool> is_over_ = false;  // changed with the lock
};

}  // namespace poptorch_emu
