#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "program/program.h"
#include "runtime/executor/output_collector.h"

namespace poptorch_emu {

// Results of so many steps, output by output: they share the storage of the call's results, and
// their first dimension is that of the steps.
using TakenResults = std::pair<int64_t, std::vector<at::Tensor>>;

// Hands out the results of a call while it runs. A result has the rows of one step, which is some
// micro-batches of each replica, of the first outputs of the program. The stream is open between
// `begin` and `end`.
//
// Owns the number of pieces of each step, how many steps are made and taken, and a lock. The caller
// of `take` and `end` wakes workers that wait for room in the stream.
class ResultStream {
 public:
  // By the thread that prepares a call. Replaces a stream that is open.
  void begin(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);

  bool is_open() const { return is_open_; }

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
  TakenResults take_all();
  // Waits for `linger` or for the end of the call, then for a result, and returns all. A caller
  // that need not react at once is woken less often than there are results. Returns nothing where
  // `take` does.
  TakenResults wait_for_all(std::chrono::microseconds linger);
  void end();

 private:
  // Under the lock.
  bool is_at_end() const { return !is_open_ || is_call_over_; }
  int64_t num_unread() const { return num_steps_made_ - num_taken_; }
  TakenResults next(int64_t count);
  void forget_steps();

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
  int64_t num_steps_made_ = 0;       // in order
  int64_t num_taken_ = 0;            // of these
  struct Result {
    at::Tensor all;  // of all steps of the call
    bool is_number;  // whether that of a step is a number without a dimension
  };
  std::vector<Result> results_;  // by output, once a step is made
};

}  // namespace poptorch_emu
