#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "program/program.h"

namespace poptorch_emu {

// Gathers the pieces of one output from all micro-batches (or windows) and replicas of a call, by
// its mode. Several threads may add pieces at the same time, in any order. Only a sum takes the
// pieces of a replica in the order of micro-batches.
class OutputCollector {
 public:
  // `num_micro_batches` is the number of pieces of one replica in the call.
  OutputCollector(const Output& output, int64_t num_micro_batches, int64_t num_replicas);

  // Returns the index of the piece in the result, or -1 if the result leaves it out.
  int64_t add(const at::Tensor& piece, int64_t micro_batch, int64_t replica);

  // The number of pieces of the result.
  int64_t num_pieces() const { return num_pieces_; }

  // The result so far, once there was a piece, and whether its pieces are numbers without a
  // dimension.
  const at::Tensor& so_far() const { return result_; }
  bool has_numbers() const { return is_scalar_; }

  // Returns the result: a single piece as it is, or all pieces joined along the first dimension.
  at::Tensor take() { return std::move(result_); }

 private:
  void allocate_for(const at::Tensor& piece);

  bool is_sum_;
  int64_t period_;  // the result has the piece of each micro-batch that ends one
  int64_t num_micro_batches_;
  int64_t num_replicas_;
  int64_t num_pieces_;
  at::Tensor result_;
  bool is_scalar_ = false;  // whether the pieces have no dimension
  // Of the thread that runs the call; another one may allocate.
  const bool is_inference_ = c10::InferenceMode::is_enabled();
  // The first piece tells the shape, so the thread that adds it allocates the result.
  struct Allocation {
    std::atomic<bool> is_done = false;
    std::mutex mutex;
  };
  std::unique_ptr<Allocation> allocation_ = std::make_unique<Allocation>();
};

}  // namespace poptorch_emu
