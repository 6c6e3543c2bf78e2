#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// Micro-batches in flight. Each worker takes one micro-batch at a time through all segments.
//
// The lists of a schedule fix the order of actions on each virtual IPU. A worker that stays with
// one micro-batch instead finds its tensors in its own cache, keeps few tensors for later actions,
// and does not wait for another worker's stage. Micro-batches begin in order, so that the first one
// in flight never waits.
class MicroBatchRunner {
 public:
  // `program` must have a path.
  MicroBatchRunner(const Program& program, int64_t num_replicas, int64_t num_workers);

  // Called by one thread at a time, under the scheduler's lock.
  void begin_window();
  // Returns whether a micro-batch of the window has not begun.
  bool are_left() const { return num_begun_ < num_replicas_ * program_.runs_per_window(); }
  // Returns the next micro-batch to begin.
  int64_t next_micro_batch() const { return num_begun_ / num_replicas_; }
  // Gives the next micro-batch to a worker that has none.
  void begin_micro_batch(int64_t worker);
  // Drops the micro-batches in flight, after an error.
  void clear();

  // Called by the worker alone: whether it has a micro-batch, and when the last one began.
  bool has_micro_batch(int64_t worker) const { return workers_[worker]->flight.has_value(); }
  int64_t begun_ns(int64_t worker) const { return workers_[worker]->begun_ns; }
  // Returns whether the next action of the worker's micro-batch can begin.
  bool is_ready(int64_t worker) const;
  // Returns the worker's next action, with the items of its links.
  Task& begin_action(int64_t worker);
  // Stores the results of a task, and lets the next micro-batch enter the segment.
  void finish_action(Task& task);

  // Called by any thread: whether earlier micro-batches have left the segment, or need not have.
  bool has_turn(const Task& task) const { return has_turn(task.replica, task.action); }
  // Returns the number of actions of each micro-batch.
  int64_t num_actions() const { return static_cast<int64_t>(program_.path.size()); }

 private:
  struct Flight {
    int64_t replica;
    int64_t micro_batch;
    size_t step = 0;  // index in the program's path
  };
  // State of one worker. Other workers do not access it, so that it stays in one core's cache.
  struct alignas(64) Worker {
    std::optional<Flight> flight = std::nullopt;
    int64_t begun_ns = 0;
    Task task = {};
    std::vector<Item> items = {};  // indexed by link
  };
  struct alignas(64) Count {
    std::atomic<int64_t> value = 0;
  };

  bool may_overlap(SegmentId id) const { return program_.at(id).turns != Turns::kOneByOne; }
  bool has_turn(int64_t replica, const Action& action) const;
  size_t place_of(int64_t replica, SegmentId segment) const {
    return replica * program_.segments.size() + segment.value;
  }

  const Program& program_;
  const int64_t num_replicas_;
  std::vector<std::unique_ptr<Worker>> workers_;
  int64_t num_begun_ = 0;        // in this window, over all replicas
  std::vector<Count> num_done_;  // completed micro-batches of this window, by replica, then segment
};

}  // namespace poptorch_emu
