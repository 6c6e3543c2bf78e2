#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace poptorch_emu {

// The results of a running call that nobody has taken yet, and the count of those in the making.
// A step is what one result covers. Not synchronised: the executor's lock guards it.
class ResultStream {
 public:
  // `micro_batches_per_step` counts those of one replica; a result has `num_outputs` tensors.
  ResultStream(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs)
      : max_unread_(max_unread),
        micro_batches_per_step_(micro_batches_per_step),
        num_outputs_(num_outputs) {}

  // A step then is complete with one piece of each output, micro-batch and replica.
  void begin_call(int64_t num_steps, int64_t num_replicas);
  void end_call() { is_over_ = true; }

  // Counts a piece of this micro-batch of the call; returns whether its step is complete now.
  // Pieces of one output and replica come in order, so steps are completed in order.
  bool add_piece(int64_t micro_batch);
  int64_t step_of(int64_t micro_batch) const { return micro_batch / micro_batches_per_step_; }
  int64_t micro_batches_per_step() const { return micro_batches_per_step_; }
  int64_t num_outputs() const { return num_outputs_; }

  void push(std::vector<at::Tensor> result) { unread_.push_back(std::move(result)); }
  std::vector<at::Tensor> pop();
  bool is_full() const { return static_cast<int64_t>(unread_.size()) >= max_unread_; }
  // Whether `pop` has an answer: a result, or that there is none any more.
  bool has_answer() const { return is_over_ || !unread_.empty(); }

 private:
  int64_t max_unread_;
  int64_t micro_batches_per_step_;
  int64_t num_outputs_;
  int64_t pieces_per_step_ = 0;
  std::vector<int64_t> num_pieces_;  // by step
  std::deque<std::vector<at::Tensor>> unread_;
  bool is_over_ = false;
};

}  // namespace poptorch_emu
