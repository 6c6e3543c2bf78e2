#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "program/program.h"

namespace poptorch_emu {

// Collects the pieces of one output from all micro-batches (or windows) and replicas of a call, by
// the output's mode. Several threads may add pieces in parallel and in any order. Only a sum
// requires the pieces of a replica in the order of micro-batches.
class OutputCollector {
 public:
  // `num_micro_batches` is the number of pieces of one replica in the call.
  OutputCollector(const Output& output, int64_t num_micro_batches, int64_t num_replicas);

  // Adds a piece and returns its index in the result, or -1 if the result does not include it.
  int64_t add(const at::Tensor& piece, int64_t micro_batch, int64_t replica);

  // Returns the number of pieces in the result.
  int64_t num_pieces() const { return num_pieces_; }

  // Return the result so far, which is defined after the first piece, and whether pieces are 0-d.
  const at::Tensor& so_far() const { return result_; }
  bool has_numbers() const { return is_scalar_; }

  // Returns the result: a single piece unchanged, or all pieces joined along the first dimension.
  at::Tensor take() { return std::move(result_); }

 private:
  void allocate_for(const at::Tensor& piece);

  bool is_sum_;
  int64_t period_;  // number of micro-batches for one piece of the result
  int64_t num_micro_batches_;
  int64_t num_replicas_;
  int64_t num_pieces_;
  at::Tensor result_;
  bool is_scalar_ = false;  // whether the pieces are 0-d
  // Mode of the thread that runs the call, because another thread may allocate.
  const bool is_inference_ = c10::InferenceMode::is_enabled();
  // The first piece determines the shape, so that the thread that adds it allocates the result.
  struct Allocation {
    std::atomic<bool> is_done = false;
    std::mutex mutex;
  };
  std::unique_ptr<Allocation> allocation_ = std::make_unique<Allocation>();
};

}  // namespace poptorch_emu
