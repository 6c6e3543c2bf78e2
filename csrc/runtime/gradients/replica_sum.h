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

// The gradients that one replica adds up in a window: a tensor, or single rows of one.
//
// Where micro-batches may add in any order (`Program::adds_in_any_order`), several threads may do
// so at once: what comes before its turn is kept, or refused. Otherwise one thread at a time uses
// the sum, and adds in the order of micro-batches.
class ReplicaSum {
 public:
  // `is_alone` says whether no other replica, of this process or another, adds to the same sum;
  // `remote` carries a sum that lives in streaming memory.
  ReplicaSum(const Program& program, AccumulatorId id, bool is_alone, int64_t num_lanes,
             RemoteTraffic& remote);

  // Each of these adds a contribution, the `index`-th of this window; false if its turn must be
  // waited for, and it was left.
  //
  // The first value is moved in when nothing else holds it, but for float16 in a sum of float32.
  // The sum is rounded to the accumulator's type each time; `rng` chooses the random bits where
  // that is done at random, and may be undefined elsewhere.
  bool add(at::Tensor& value, int64_t index, const at::Tensor& rng);
  // A gradient that is zero but for the rows that are given; `store` names them.
  bool add_rows(const AccumulateRows& store, at::Tensor& rows, const at::Tensor& indices,
                int64_t index);
  // The product of two matrices, which is added while it is made. Each lane has a tensor of its own
  // for the sum, so that two cores do not count the references to one.
  bool add_product(const Product& product, int64_t index, int64_t lane);
  // By any thread: whether contribution `index` is the next one.
  bool has_turn(int64_t index) const { return order_.has_turn(index); }

  // Adds a contribution that comes in order. What lives in streaming memory comes to the IPU for
  // the addition and goes back.
  void add_next(at::Tensor value, int64_t index, const at::Tensor& rng);

  // The sum, where it is no sum of rows; undefined before the first contribution.
  const at::Tensor& tensor() const { return sum_; }
  at::Tensor& tensor() { return sum_; }
  // The rows of a sum that no other replica adds to, and that is not in streaming memory.
  const RowSum& rows() const { return rows_; }
  RowSum& rows() { return rows_; }

  // Throws if the values of a sum are not finite and the program checks that.
  void check(const at::Tensor& sum) const;
  // Ends the sum. Memory in which products are added up stays for the next one.
  void clear();
  // What it holds on the machine, where a sum of rows is whole.
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
  const int64_t num_micro_batches_;  // of a window
  const bool takes_any_order_;
  const bool is_alone_;
  RemoteTraffic& remote_;

  at::Tensor sum_;
  RowSum rows_;
  SummandOrder order_;
  bool keeps_memory_ = false;      // that of the sum, when it ends
  at::Tensor kept_memory_;         // where the next window's sum will be
  std::vector<at::Tensor> views_;  // of the sum, by lane
};

}  // namespace poptorch_emu
