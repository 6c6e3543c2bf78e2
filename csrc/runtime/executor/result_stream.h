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

// Number of steps, and their results by output. The results share storage with the call's results;
// their first dimension is the step.
using TakenResults = std::pair<int64_t, std::vector<at::Tensor>>;

// Delivers the results of a call while it runs. A result contains the rows of one step (some
// micro-batches of each replica) for the first outputs of the program. The stream is open between
// `begin` and `end`.
//
// This class owns the number of pieces of each step, the number of completed and taken steps, and a
// lock. The caller of `take` and `end` wakes workers that wait for room in the stream.
class ResultStream {
 public:
  // Called by the thread that prepares a call. Replaces an open stream.
  void begin(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);

  bool is_open() const { return is_open_; }

  // Called by the thread that runs the call. Throws `Error` unless steps divide its micro-batches.
  void begin_call(int64_t num_micro_batches, int64_t num_replicas);
  void end_call();

  // Called by any worker after an action of the segment has added its pieces to `outputs`, with its
  // first micro-batch of the call. Micro-batches arrive in any order; steps are delivered in order.
  void add_pieces(const Segment& segment, int64_t micro_batch,
                  const std::vector<OutputCollector>& outputs);
  // Returns whether the maximum number of results waits. False if the stream is not open.
  bool is_full() const;
  // Returns whether a micro-batch must wait, although earlier results are not complete. Otherwise,
  // if one worker is slow, the others could compute any number of later micro-batches.
  bool is_too_early(int64_t micro_batch, int64_t num_workers) const;

  // Called by any other thread: waits for the next result. Returns nothing after the last one of
  // the call, after the call has failed, or if the stream is not open.
  std::vector<at::Tensor> take();
  // Returns all complete results.
  TakenResults take_all();
  // Waits for `linger` or the end of the call, then for a result, and returns all. A caller that
  // need not react immediately is thus woken less often. May return nothing, like `take`.
  TakenResults wait_for_all(std::chrono::microseconds linger);
  void end();

 private:
  // The functions below are called with the lock.
  bool is_at_end() const { return !is_open_ || is_call_over_; }
  int64_t num_unread() const { return num_steps_made_ - num_taken_; }
  TakenResults next(int64_t count);
  void forget_steps();

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::condition_variable end_;
  // Changed with the lock. Workers read it without the lock, because there is rarely a stream.
  std::atomic<bool> is_open_ = false;
  bool is_call_over_ = false;
  int64_t max_unread_ = 0;
  int64_t micro_batches_per_step_ = 0;
  int64_t num_outputs_ = 0;
  int64_t pieces_per_step_ = 0;
  std::vector<int64_t> num_pieces_;  // indexed by step
  int64_t num_steps_made_ = 0;       // completed steps, in order
  int64_t num_taken_ = 0;            // completed steps that were taken
  struct Result {
    at::Tensor all;  // results of all steps of the call
    bool is_number;  // whether the result of a step is 0-d
  };
  std::vector<Result> results_;  // indexed by output, after the first step
};

}  // namespace poptorch_emu
