#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "numerics/gemm/column_product.h"
#include "program/program.h"
#include "runtime/gradients/row_sum.h"
#include "runtime/gradients/summand_order.h"
#include "runtime/memory/remote_traffic.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// The gradients of one window: first a sum for each replica, then one for each group of replicas.
//
// Several threads may add to an entry of a replica at once (`Program::adds_in_any_order`). For the
// rest it is not synchronised but where it is said: the executor lets only one thread at a time
// touch an entry of a replica, and runs a reduction when all replicas have added.
class Accumulators {
 public:
  // `remote` carries what lives in streaming memory; `ring` reaches the replicas of other
  // processes, and is null where there are none.
  Accumulators(const Program& program, const Replicas& replicas, int64_t num_lanes,
               RemoteTraffic& remote, Ring* ring);

  // Adds one micro-batch's contribution, the `index`-th of this window; false if the turn of that
  // is still to be waited for, and the value was left. The first is moved in when nobody else holds
  // it, but for float16 in a sum of float32. The sum is rounded to the accumulator's type each
  // time; `rng` chooses the random bits where that is done at random, and may be undefined
  // elsewhere. A sharded accumulator is reduced at once, by the replica that comes last; no replica
  // may add again before. All processes add to sharded accumulators in one order.
  bool add(AccumulatorId id, int64_t replica, at::Tensor& value, int64_t index,
           const at::Tensor& rng);

  // The same for a gradient that is zero but for the rows that are given; `store` says which.
  bool add_rows(const AccumulateRows& store, int64_t replica, at::Tensor& rows,
                const at::Tensor& indices, int64_t index);

  // The same for the product of two matrices, which is added while it is made. Like frames, lanes
  // count references on their own.
  bool add_product(AccumulatorId id, int64_t replica, int64_t lane, const Product& product,
                   int64_t index);

  // By any thread.
  bool has_turn(AccumulatorId id, int64_t replica, int64_t index) const {
    return states_[id.value]->order[replica].has_turn(index);
  }

  // Does the replica's part of a ring all-reduce over its group. Of S members the k-th adds up the
  // k-th of S parts, starting with the value of member k + 1 and ending with its own, and makes it
  // known to all. Members may do so at the same time.
  void reduce(AccumulatorId id, int64_t replica);

  // Makes these sums those over the replicas of all processes, as the `number`-th exchange of a
  // window; those of sharded ones have the numbers of the accumulators. Throws `Error` when another
  // process fails.
  void exchange(const std::vector<AccumulatorId>& ids, int64_t number);
  // The same, but only the parts of the replicas here become sums.
  void scatter(const std::vector<AccumulatorId>& ids, int64_t number);
  // Puts sharded sums together from the parts of all processes.
  void gather(const std::vector<AccumulatorId>& ids, int64_t number);

  // The sum over the replica's group, and its part of it; reduced before if the group has several
  // members.
  at::Tensor total(AccumulatorId id, int64_t replica) const;
  at::Tensor total_shard(AccumulatorId id, int64_t replica) const;

  // The rows that gradients were added to in this window, each once; int64 [rows]. Of a sum of one
  // replica. And their sums, which are valid until the window ends; float32 [rows, width].
  at::Tensor touched_rows(AccumulatorId id, int64_t replica);
  at::Tensor sums_of_touched_rows(AccumulatorId id, int64_t replica);
  // What these are the sums of.
  const RowSummands& row_summands(AccumulatorId id, int64_t replica) const {
    return states_[id.value]->rows_of_replica[replica].summands();
  }

  // Empties everything, at the end of a window or after an error.
  void clear();

  // Bytes that a replica's accumulators hold on the machine, where a sum of rows is whole.
  int64_t bytes(int64_t replica) const;

 private:
  struct State {
    State(int64_t num_replicas, int64_t num_lanes);

    std::vector<at::Tensor> of_replica;   // of a sharded accumulator its parts, already reduced
    std::vector<RowSum> rows_of_replica;  // of a sum of rows that is not among the above
    std::vector<SummandOrder> order;      // by replica
    // By replica: whether the memory of the sum is to be kept, and where the next window's will be.
    std::vector<char> keeps_memory;
    std::vector<at::Tensor> kept_memory;
    std::vector<std::vector<at::Tensor>> views;  // of the sum, by replica and lane
    // What the replicas contribute to a sharded accumulator for one micro-batch.
    std::vector<at::Tensor> arrived;
    int64_t num_arrived = 0;
    std::vector<char> is_reduced;  // by replica: whether it did its part
    std::vector<int64_t> sizes;
    at::Tensor gathered;  // the whole of a sharded sum, where other processes have parts of it
    std::mutex mutex;
  };

  bool is_alone(AccumulatorId id, int64_t replica) const;
  bool keeps_rows(AccumulatorId id, int64_t replica) const;
  static void clear_sum(State& state, size_t replica);
  static at::Tensor& view_for(State& state, int64_t replica, int64_t lane);
  static at::Tensor& begin_sum(State& state, int64_t replica, at::IntArrayRef sizes);
  void add_rows_now(const AccumulateRows& store, int64_t replica, const at::Tensor& rows,
                    const at::Tensor& indices, int64_t index);
  void add_product_now(AccumulatorId id, int64_t replica, int64_t lane, const Product& product,
                       int64_t index);
  void add_to(at::Tensor& kept, AccumulatorId id, at::Tensor value, int64_t index,
              const at::Tensor& rng);
  void add_on_chip(at::Tensor& sum, AccumulatorId id, at::Tensor value, int64_t index,
                   const at::Tensor& rng);
  // Throws if the sum is not finite and that is checked.
  void check(const at::Tensor& sum, AccumulatorId id) const;
  void add_sharded(AccumulatorId id, int64_t replica, const at::Tensor& value, int64_t index,
                   const at::Tensor& rng);
  std::vector<at::Tensor> sums_of_parts(AccumulatorId id, const std::vector<at::Tensor>& wholes);
  std::vector<Ring::Summands> summands_of(const std::vector<AccumulatorId>& ids);
  const std::vector<int64_t>& members(AccumulatorId id, int64_t replica) const;

  const Program& program_;
  const Replicas replicas_;
  RemoteTraffic& remote_;
  Ring* const ring_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<std::vector<std::vector<int64_t>>> members_;  // by accumulator, then replica
};

}  // namespace poptorch_emu
