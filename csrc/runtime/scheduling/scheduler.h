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
#include "runtime/executor/host_desk.h"
#include "runtime/executor/result_stream.h"
#include "runtime/scheduling/link_queue.h"
#include "runtime/scheduling/progress.h"
#include "runtime/scheduling/task.h"
#include "runtime/scheduling/walks.h"
#include "runtime/scheduling/worker_choice.h"

namespace poptorch_emu {

// Decides which worker runs what next, and when a window and a call are over.
//
// Owns how far each virtual IPU is in its list of actions, the links between them and the error of
// the call, all behind one lock that no other class sees. It reads the desk and the stream, whose
// own locks come after this one. A virtual IPU is ready when each incoming link of its next action
// has an item and each outgoing one has room; a part of an update when, beyond that, every
// micro-batch of the window is through and every replica of the IPU with the parts before.
//
// Where the program allows it, and nobody asks for the order of the lists, a worker takes a
// micro-batch through all its actions instead (`Walks`), and only updates go by the lists.
//
// No result depends on who runs what when.
class Scheduler {
 public:
  // What a worker does after a task.
  enum class Next {
    kGoOn,       // the task, which is the next one of its micro-batch or its IPU now
    kAnother,    // whatever `take` gives
    kEndWindow,  // what belongs to the end of a window, then `begin_next_window`
  };

  // Worker 0 leaves its tasks for requests at `desk`; nothing begins while `stream` is full. Who
  // waits for a task helps with the `loops` of others. The other workers rest while `choice` has
  // windows run on one core.
  Scheduler(const Program& program, int64_t num_replicas, int64_t num_workers, bool follows_lists,
            WorkerChoice::Among choice, const HostDesk& desk, const ResultStream& stream,
            SharedLoops& loops);

  // By the thread that runs the call, when no worker is at work. The second returns the error of
  // the call, if there was one, and drops what is in the links then.
  void begin_call(int64_t num_windows);
  std::exception_ptr end_call();

  // Whether the window that comes, or is under way, runs on one core.
  bool is_alone() const;
  // Of the last call.
  int64_t num_complete_windows() const { return window_; }

  // The following are for workers. Waits until a virtual IPU is ready, and returns its next action;
  // returns nothing when the call is over, or when worker 0 is wanted at the desk.
  Task* take(int64_t worker);
  bool is_over() const { return is_over_; }
  // On a walk, waits until the micro-batches before have left the task's segment; false if the call
  // is over before, and the task is not to be done any more.
  bool wait_for_turn(const Task& task);
  // Waits until something `holds` that other workers bring about, and say by `note`; false if the
  // call is over before.
  bool wait_until(const std::function<bool()>& holds);
  void note() { progress_.note(); }
  // The task was done: its links get what it gave. With `kGoOn` it is replaced by the next one.
  // With `kEndWindow` nothing else can begin.
  Next finish(Task*& task, int64_t worker);
  void begin_next_window();
  // The task was not done: the call is over, with the first such error, if there is one.
  void fail(std::exception_ptr error);
  // The call is to end, though no task has failed: at once, or, where parts of an update may have
  // changed weights in their place already, when the update is complete. True if at once.
  bool interrupt(std::exception_ptr error);

  // By any thread: has waiting workers look again, after the desk or the stream has changed.
  void wake();
  // The same for those that sleep, since others wait for nothing but tasks.
  void wake_sleepers() { progress_.wake_sleepers(); }

  // By link, the most items it ever held, and the most bytes one replica's values in it had.
  std::vector<int64_t> peak_link_items() const;
  std::vector<int64_t> peak_link_bytes() const;

 private:
  struct VirtualIpu {
    Task task;
    size_t position = 0;  // of the task in the IPU's list, or of the next one
    bool is_at_work = false;
  };

  // All of these are called with the lock held.
  VirtualIpu& ipu_of(const Task& task);
  const Action& next_action(const VirtualIpu& ipu) const;
  bool is_at_end(const VirtualIpu& ipu) const {
    return ipu.position == program_.schedule[ipu.task.ipu].size();
  }
  bool is_wanted_at_desk(int64_t worker) const { return worker == 0 && desk_.has_requests(); }
  bool are_micro_batches_left() const { return walks_ && micro_batch_actions_left_ > 0; }
  bool is_walking(int64_t worker) const { return walks_ && walks_->is_walking(worker); }
  Task* begin_next(int64_t worker);
  void note_walk(int64_t worker);
  void leave(Task& task);
  VirtualIpu* find_ready();
  bool is_ready(const VirtualIpu& ipu) const;
  bool have_peers_arrived(const VirtualIpu& ipu) const;
  bool have_links(int64_t replica, SegmentId id) const;
  bool takes_part(const VirtualIpu& ipu) const;
  Task* begin_on(VirtualIpu& ipu, int64_t worker);
  void give_outputs(Task& task);
  void move_to(VirtualIpu& ipu, size_t position);
  void begin_window();
  bool is_to_rest(int64_t worker) const { return worker != 0 && choice_.is_alone(); }
  void end_with(std::exception_ptr error);
  std::exception_ptr deadlock() const;

  // And these without it: `window_` and `choice_`, which they read, change only when no walk is
  // under way.
  bool is_of_walk(const Task& task) const {
    return walks_ && program_.at(task.action.segment).kind == SegmentKind::kMicroBatch;
  }
  bool take_step(Task& task);
  Task& begin(Task& task, int64_t worker) const;

  const Program& program_;
  const HostDesk& desk_;
  const ResultStream& stream_;
  SharedLoops& loops_;

  Progress progress_;
  std::condition_variable_any end_of_rest_;
  WorkerChoice choice_;
  std::optional<Walks> walks_;     // where actions of micro-batches do not go by the lists
  std::vector<LinkQueue> queues_;  // by link
  std::vector<VirtualIpu> ipus_;   // by replica, then IPU
  int64_t num_windows_ = 0;
  int64_t window_ = 0;
  int64_t micro_batch_actions_left_ = 0;  // of this window
  int64_t window_begun_ns_ = 0;
  int64_t num_done_ = 0;  // actions of this window, and the sum of their times
  int64_t busy_ns_ = 0;
  int64_t ipus_at_end_ = 0;
  int64_t num_running_ = 0;  // tasks; a walk that waits for its turn has none
  std::exception_ptr error_;
  std::exception_ptr interruption_;  // the error of the call when this window is over

  std::atomic<bool> is_over_ = false;  // changed with the lock
};

}  // namespace poptorch_emu
