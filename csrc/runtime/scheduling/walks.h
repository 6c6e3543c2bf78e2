#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// Micro-batches that workers take through all their segments, each worker one at a time.
//
// The lists of a schedule say when each virtual IPU does what; the results are the same as long as
// each segment runs its micro-batches in order. So where the program allows it, a worker stays with
// a micro-batch from its first segment to its last: tensors stay in the cache of one core, few of
// them wait for a later action, and no worker waits for the others' stages.
//
// Of a segment that may overlap several micro-batches are under way at once. They take turns where
// it stores what depends on their order, such as a variable; otherwise each leaves it as soon as it
// can, so that a slower worker holds nobody up. Of another segment they are one by one.
// Micro-batches begin in order, so that the first of those under way never waits.
class Walks {
 public:
  // Whether nobody can tell walks from the order of the lists by the results: there are several
  // micro-batches, none of their segments waits for other replicas or is seen outside, links stay
  // among them, and a variable that one of them writes is its own. (A sum always is.)
  static bool are_possible(const Program& program);

  Walks(const Program& program, int64_t num_replicas, int64_t num_workers);

  // By one thread at a time, which the scheduler's lock sees to.
  void begin_window();
  // Whether some micro-batch of the window was not begun.
  bool are_left() const { return num_begun_ < num_replicas_ * program_.micro_batches_per_window; }
  // The worker, which has none, gets the next one.
  void begin_walk(int64_t worker);
  // Forgets what is under way, after an error.
  void clear();

  // By the worker alone. Whether it is on its way with a micro-batch.
  bool is_walking(int64_t worker) const { return workers_[worker]->walk.has_value(); }
  // When its last walk began.
  int64_t begun_ns(int64_t worker) const { return workers_[worker]->begun_ns; }
  // Whether the next action of its micro-batch can begin.
  bool is_ready(int64_t worker) const;
  // Returns that action, with what its links hold.
  Task& begin(int64_t worker);
  // Keeps what the task gives, and lets the next micro-batch have its turn.
  void finish(Task& task);

  // By any thread: whether nothing keeps the task from leaving its segment any more.
  bool has_turn(const Task& task) const { return has_turn(task.replica, task.action); }
  // How many actions each micro-batch has.
  int64_t num_steps() const { return static_cast<int64_t>(path_.size()); }

 private:
  struct Walk {
    int64_t replica;
    int64_t micro_batch;
    size_t step = 0;  // in `path_`
  };
  // What one worker has; others do not touch it, so that it stays in one core's cache.
  struct alignas(64) Worker {
    std::optional<Walk> walk = std::nullopt;
    int64_t begun_ns = 0;
    Task task = {};
    std::vector<Item> items = {};  // by link
  };
  struct alignas(64) Count {
    std::atomic<int64_t> value = 0;
  };

  bool has_turn(int64_t replica, const Action& action) const;
  const Count& num_done(int64_t replica, SegmentId segment) const {
    return num_done_[replica * static_cast<int64_t>(program_.segments.size()) + segment.value];
  }

  const Program& program_;
  const int64_t num_replicas_;
  const std::vector<SegmentId> path_;    // what each micro-batch runs, in order
  const std::vector<bool> takes_turns_;  // by segment: whether its micro-batches leave it in order
  std::vector<std::unique_ptr<Worker>> workers_;
  int64_t num_begun_ = 0;        // of this window, over all replicas
  std::vector<Count> num_done_;  // micro-batches of this window, by replica, then segment
};

}  // namespace poptorch_emu
