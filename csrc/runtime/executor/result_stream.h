#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/executor/collector.h"

namespace poptorch_emu {

// Hands out the results of a call while it runs: those that nobody has taken yet, and the count of
// those in the making. A result covers one step of so many micro-batches of a replica, and has the
// rows of the first outputs of the program; the stream is open between `begin` and `end`.
//
// Owns all of that behind a lock of its own, and knows nobody who waits for room.
class ResultStream {
 public:
  // By the thread that prepares a call. A stream that is open is replaced.
  void begin(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);

  // By the thread that runs the call. Throws `Error` if steps don't divide it.
  void begin_call(int64_t num_micro_batches, int64_t num_replicas);
  void end_call();

  // By any worker, after an action of this segment has given its pieces for this micro-batch of
  // the call to `outputs`. They may come in any order; steps are handed out in theirs.
  void add_pieces(const Segment& segment, int64_t micro_batch,
                  const std::vector<OutputCollector>& outputs);
  // Whether as many results as may wait do so; of no stream, never.
  bool is_full() const;

  // By any other thread. Waits for the next result; empty after the last one of the call, when the
  // call has failed, or when the stream is not open.
  std::vector<at::Tensor> take();
  void end();

 private:
  mutable std::mutex mutex_;
  std::condition_variable progress_;
  // Changed with the lock; workers ask without it, most of the time for nothing.
  std::atomic<bool> is_open_ = false;
  bool is_call_over_ = false;
  int64_t max_unread_ = 0;
  int64_t micro_batches_per_step_ = 0;
  int64_t num_outputs_ = 0;
  int64_t pieces_per_step_ = 0;
  std::vector<int64_t> num_pieces_;  // by step
  int64_t num_steps_made_ = 0;       // of the call: those that were unread at some time
  std::deque<std::vector<at::Tensor>> unread_;
};

}  // namespace poptorch_emu
