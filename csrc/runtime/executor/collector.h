#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "program/program.h"

namespace poptorch_emu {

// Gathers one output of all micro-batches (or windows) and replicas of a call by its mode. Several
// threads may add at the same time, in any order; but a sum takes those of one replica in theirs.
class OutputCollector {
 public:
  // `num_micro_batches` counts all of the call, for one replica.
  OutputCollector(const Output& output, int64_t num_micro_batches, int64_t num_replicas);

  // Returns the place of the piece in the result, or -1 if it is no part of it.
  int64_t add(const at::Tensor& piece, int64_t micro_batch, int64_t replica);

  // How many pieces the result has.
  int64_t num_pieces() const { return num_pieces_; }

  // What `count` micro-batches from `first` on have added, of all replicas, in mode `All`; shares
  // its storage with the gathered tensor.
  at::Tensor rows(int64_t first, int64_t count) const;

  // The gathered tensor: one piece unchanged, several joined along the first dimension.
  at::Tensor take() { return std::move(result_); }

 private:
  // Whether this micro-batch is part of the result, and the index of its piece.
  void allocate_for(const at::Tensor& piece);
  bool is_wanted(int64_t micro_batch) const;
  int64_t index_of(int64_t micro_batch, int64_t replica) const;

  OutputMode mode_;
  int64_t period_;
  int64_t num_micro_batches_;
  int64_t num_replicas_;
  int64_t num_pieces_;
  at::Tensor result_;
  bool is_scalar_ = false;  // whether the pieces are
  // Of the thread that makes this one, whoever adds first.
  const bool is_inference_ = c10::InferenceMode::is_enabled();
  // Until the first piece has come, and its shape is known.
  struct Allocation {
    std::atomic<bool> is_done = false;
    std::mutex mutex;
  };
  std::unique_ptr<Allocation> allocation_ = std::make_unique<Allocation>();
};

}  // namespace poptorch_emu
