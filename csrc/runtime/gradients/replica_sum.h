#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "numerics/gemm/product.h"
#include "program/program.h"
#include "runtime/gradients/row_sum.h"
#include "runtime/gradients/summand_order.h"
#include "runtime/memory/remote_traffic.h"

namespace poptorch_emu {

// The sum of the gradients of one replica in a window: a tensor, or single rows of one.
//
// If micro-batches may add in any order (`Program::adds_in_any_order`), several threads may add in
// parallel: an early contribution is kept or refused. Otherwise one thread at a time adds, in the
// order of micro-batches.
class ReplicaSum {
 public:
  // `is_alone` says whether no other replica, in any process, adds to the same sum. `remote` copies
  // a sum that lives in streaming memory.
  ReplicaSum(const Program& program, AccumulatorId id, bool is_alone, int64_t num_lanes,
             RemoteTraffic& remote);

  // Each of these functions adds contribution `index` of this window. It returns false and adds
  // nothing if the caller must wait for its turn.
  //
  // The first value is moved if nothing else holds it, except float16 in a float32 sum. The sum is
  // rounded to the accumulator's type at each addition. `rng` supplies the bits for stochastic
  // rounding, and may otherwise be undefined.
  bool add(at::Tensor& value, int64_t index, const at::Tensor& rng);
  // Adds a gradient that is zero except for the given rows, named by `store`.
  bool add_rows(const AccumulateRows& store, at::Tensor& rows, const at::Tensor& indices,
                int64_t index);
  // Adds the product of two matrices during its computation. Each lane has its own tensor for the
  // sum, so that two cores do not share a reference count.
  bool add_product(const Product& product, int64_t index, int64_t lane);
  // Called by any thread: whether contribution `index` is the next one.
  bool has_turn(int64_t index) const { return order_.has_turn(index); }

  // Adds a contribution that arrives in order. A sum in streaming memory is copied to the IPU for
  // the addition and back.
  void add_next(at::Tensor value, int64_t index, const at::Tensor& rng);

  // Returns a dense sum; undefined before the first contribution.
  const at::Tensor& tensor() const { return sum_; }
  at::Tensor& tensor() { return sum_; }
  // Returns the rows of a sum to which no other replica adds, and that is not in streaming memory.
  const RowSum& rows() const { return rows_; }
  RowSum& rows() { return rows_; }

  // Throws if a sum has values that are not finite and the program checks for them.
  void check(const at::Tensor& sum) const;
  // Ends the sum. The memory of summed products is kept for the next sum.
  void clear();
  // Returns the bytes that the sum holds on the machine, where a sum of rows is dense.
  int64_t num_bytes() const;

 private:
  bool keeps_rows() const { return is_alone_ && !accumulator_.is_remote; }
  void add_next_rows(const AccumulateRows& store, const at::Tensor& rows, const at::Tensor& indices,
                     int64_t index);
  void add_next_product(const Product& product, int64_t index, int64_t lane);
  void add_on_chip(at::Tensor& sum, at::Tensor value, int64_t index, const at::Tensor& rng) const;
  at::Tensor& begin_in_kept_memory(at::IntArrayRef sizes);
  at::Tensor& view_for(int64_t lane);

  const AccumulatorId id_;
  const Accumulator& accumulator_;
  const Numerics& numerics_;
  const int64_t num_micro_batches_;  // micro-batches in a window
  const bool takes_any_order_;
  const bool is_alone_;
  RemoteTraffic& remote_;

  at::Tensor sum_;
  RowSum rows_;
  SummandOrder order_;
  bool keeps_memory_ = false;      // whether the sum's memory is kept
  at::Tensor kept_memory_;         // memory for the next window's sum
  std::vector<at::Tensor> views_;  // views of the sum, by lane
};

}  // namespace poptorch_emu
