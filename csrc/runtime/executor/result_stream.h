#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/executor/output_collector.h"

namespace poptorch_emu {

// Hands out the results of a call while it runs. A result has the rows of one step, which is some
// micro-batches of each replica, of the first outputs of the program. The stream is open between
// `begin` and `end`.
//
// Owns the results that wait to be taken, the number of pieces of each step, and a lock. The
// caller of `take` and `end` wakes workers that wait for room in the stream.
class ResultStream {
 public:
  // By the thread that prepares a call. Replaces a stream that is open.
  void begin(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);

  // By the thread that runs the call. Throws `Error` if steps do not divide its micro-batches.
  void begin_call(int64_t num_micro_batches, int64_t num_replicas);
  void end_call();

  // By any worker, after an action of the segment has added its pieces to `outputs`; its first
  // micro-batch of the call is given. Micro-batches may come in any order. Steps are handed out in
  // order.
  void add_pieces(const Segment& segment, int64_t micro_batch,
                  const std::vector<OutputCollector>& outputs);
  // Whether as many results wait as may. False if the stream is not open.
  bool is_full() const;
  // Whether a micro-batch of the call is to wait, though the results before it are not yet made:
  // while some worker is slow with an early one, the others would make any number of later ones.
  bool is_too_early(int64_t micro_batch, int64_t num_workers) const;

  // By any other thread. Waits for the next result. Returns nothing after the last one of the call,
  // after the call has failed, or if the stream is not open.
  std::vector<at::Tensor> take();
  // Returns all results that are complete.
  std::vector<std::vector<at::Tensor>> take_all();
  // Waits for `linger` or for the end of the call, then for a result, and returns all. A caller
  // that need not react at once is woken less often than there are results. Returns nothing where
  // `take` does.
  std::vector<std::vector<at::Tensor>> wait_for_all(std::chrono::microseconds linger);
  void end();

 private:
  // Under the lock.
  bool is_at_end() const { return !is_open_ || is_call_over_; }
  std::vector<std::vector<at::Tensor>> all_unread();

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::condition_variable end_;
  // Changed under the lock. Workers ask without it, since there is seldom a stream.
  std::atomic<bool> is_open_ = false;
  bool is_call_over_ = false;
  int64_t max_unread_ = 0;
  int64_t micro_batches_per_step_ = 0;
  int64_t num_outputs_ = 0;
  int64_t pieces_per_step_ = 0;
  std::vector<int64_t> num_pieces_;  // by step
  int64_t num_steps_made_ = 0;       // steps of the call that have been handed to `unread_`
  std::deque<std::vector<at::Tensor>> unread_;
};

}  // namespace poptorch_emu
