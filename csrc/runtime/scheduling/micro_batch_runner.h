#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/micro_batch_order.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// Micro-batches in flight that workers take through all segments, each worker one at a time.
//
// The lists of a schedule say when each virtual IPU does what. A worker that stays with a
// micro-batch instead finds its tensors in its own cache, leaves few of them for later actions, and
// waits for no other worker's stage. Micro-batches begin in order, so that the first of those in
// flight never waits.
class MicroBatchRunner {
 public:
  // `order` has a path.
  MicroBatchRunner(const Program& program, const MicroBatchOrder& order, int64_t num_replicas,
                   int64_t num_workers);

  // By one thread at a time, which the scheduler's lock sees to.
  void begin_window();
  // Whether some micro-batch of the window has not begun.
  bool are_left() const { return num_begun_ < num_replicas_ * program_.runs_per_window(); }
  // The next one to begin.
  int64_t next_micro_batch() const { return num_begun_ / num_replicas_; }
  // Gives it to a worker that has none.
  void begin_micro_batch(int64_t worker);
  // Forgets what is in flight, after an error.
  void clear();

  // By the worker alone. Whether it has a micro-batch in flight, and when its last one began.
  bool has_micro_batch(int64_t worker) const { return workers_[worker]->flight.has_value(); }
  int64_t begun_ns(int64_t worker) const { return workers_[worker]->begun_ns; }
  // Whether the next action of its micro-batch can begin.
  bool is_ready(int64_t worker) const;
  // Returns that action, with what its links hold.
  Task& begin_action(int64_t worker);
  // Keeps what the task gives, and lets the next micro-batch have its turn.
  void finish_action(Task& task);

  // By any thread: whether the micro-batches before have left the task's segment, or need not.
  bool has_turn(const Task& task) const { return has_turn(task.replica, task.action); }
  // How many actions each micro-batch has.
  int64_t num_actions() const { return static_cast<int64_t>(order_.path.size()); }

 private:
  struct Flight {
    int64_t replica;
    int64_t micro_batch;
    size_t step = 0;  // in the path
  };
  // What one worker has. Others do not touch it, so that it stays in one core's cache.
  struct alignas(64) Worker {
    std::optional<Flight> flight = std::nullopt;
    int64_t begun_ns = 0;
    Task task = {};
    std::vector<Item> items = {};  // by link
  };
  struct alignas(64) Count {
    std::atomic<int64_t> value = 0;
  };

  bool may_overlap(SegmentId id) const { return order_.turns[id.value] != Turns::kOneByOne; }
  bool has_turn(int64_t replica, const Action& action) const;
  size_t place_of(int64_t replica, SegmentId segment) const {
    return replica * program_.segments.size() + segment.value;
  }

  const Program& program_;
  const MicroBatchOrder order_;
  const int64_t num_replicas_;
  std::vector<std::unique_ptr<Worker>> workers_;
  int64_t num_begun_ = 0;        // of this window, over all replicas
  std::vector<Count> num_done_;  // micro-batches of this window, by replica, then segment
};

}  // namespace poptorch_emu
