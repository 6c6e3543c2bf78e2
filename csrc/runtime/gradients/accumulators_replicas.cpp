// How sums are added up over replicas, of this process and of others.

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "runtime/gradients/accumulators.h"
#include "runtime/memory/shards.h"

namespace poptorch_emu {
namespace {

// Adds up what each replica has of part `index`, in the order of a ring: the next one first, its
// own last.
at::Tensor ring_sum(const std::vector<at::Tensor>& parts, int64_t index) {
  const int64_t count = static_cast<int64_t>(parts.size());
  at::Tensor sum = parts[(index + 1) % count].clone();
  for (int64_t step = 2; step <= count; ++step) sum.add_(parts[(index + step) % count]);
  return sum;
}

}  // namespace

// By replica, the sum over all of its part of what the replicas here have.
std::vector<at::Tensor> Accumulators::sums_of_parts(AccumulatorId id,
                                                    const std::vector<at::Tensor>& wholes) {
  std::vector<at::Tensor> sums;
  if (ring_ != nullptr) {
    // Sums are made where the summands are, which others may still read.
    Ring::Summands own;
    for (const at::Tensor& whole : wholes) {
      own.push_back(whole.clone(at::MemoryFormat::Contiguous));
    }
    ring_->reduce_scatter(id.value, {own});
    for (int64_t here = 0; here < replicas_.here; ++here) {
      sums.push_back(shard_of(own.front(), replicas_.first + here, replicas_.all));
    }
    return sums;
  }
  for (int64_t part = 0; part < replicas_.here; ++part) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& whole : wholes) parts.push_back(shard_of(whole, part, replicas_.here));
    sums.push_back(ring_sum(parts, part));
  }
  return sums;
}

void Accumulators::reduce(AccumulatorId id, int64_t replica) {
  State& state = *states_[id.value];
  const Accumulator& accumulator = program_.accumulators[id.value];
  const std::vector<int64_t>& group = members(id, replica);
  const int64_t count = static_cast<int64_t>(group.size());
  const int64_t index = std::find(group.begin(), group.end(), replica) - group.begin();
  std::vector<at::Tensor> parts;
  for (int64_t member : group) {
    const at::Tensor& whole = state.of_replica[member];
    if (!whole.defined()) throw Error("Accumulator '" + accumulator.name + "' is empty.");
    const at::Tensor part = shard_of(whole, index, count);
    parts.push_back(accumulator.is_remote ? remote_.load(part) : part);
  }
  const at::Tensor sum = ring_sum(parts, index);
  check(sum, id);
  // The members share one copy of the total, which takes the place of the first one's sum: nobody
  // else reads this part of it.
  put_shard(state.of_replica[group.front()], index, count,
            accumulator.is_remote ? remote_.store(sum) : sum);
  state.is_reduced[replica] = 1;
}

std::vector<Ring::Summands> Accumulators::summands_of(const std::vector<AccumulatorId>& ids) {
  std::vector<Ring::Summands> tensors;
  for (AccumulatorId id : ids) {
    const Accumulator& accumulator = program_.accumulators[id.value];
    Ring::Summands summands;
    for (const at::Tensor& whole : states_[id.value]->of_replica) {
      if (!whole.defined()) throw Error("Accumulator '" + accumulator.name + "' is empty.");
      summands.push_back(accumulator.is_remote ? remote_.load(whole) : whole.contiguous());
    }
    tensors.push_back(std::move(summands));
  }
  return tensors;
}

void Accumulators::exchange(const std::vector<AccumulatorId>& ids, int64_t number) {
  const std::vector<Ring::Summands> tensors = summands_of(ids);
  ring_->all_reduce(number, tensors);
  for (size_t i = 0; i < ids.size(); ++i) {
    State& state = *states_[ids[i].value];
    const at::Tensor& sum = tensors[i].front();
    check(sum, ids[i]);
    const bool is_remote = program_.accumulators[ids[i].value].is_remote;
    state.of_replica.front() = is_remote ? remote_.store(sum) : sum;
    state.is_reduced.assign(replicas_.here, 1);
  }
}

void Accumulators::scatter(const std::vector<AccumulatorId>& ids, int64_t number) {
  const std::vector<Ring::Summands> tensors = summands_of(ids);
  ring_->reduce_scatter(number, tensors);
  for (size_t i = 0; i < ids.size(); ++i) {
    State& state = *states_[ids[i].value];
    const at::Tensor& sum = tensors[i].front();
    for (int64_t here = 0; here < replicas_.here; ++here) {
      check(shard_of(sum, replicas_.first + here, replicas_.all), ids[i]);
    }
    const bool is_remote = program_.accumulators[ids[i].value].is_remote;
    state.of_replica.front() = is_remote ? remote_.store(sum) : sum;
    state.is_reduced.assign(replicas_.here, 1);
  }
}

void Accumulators::gather(const std::vector<AccumulatorId>& ids, int64_t number) {
  std::vector<at::Tensor> wholes;
  for (AccumulatorId id : ids) {
    State& state = *states_[id.value];
    const Accumulator& accumulator = program_.accumulators[id.value];
    state.gathered = at::empty(state.sizes, at::TensorOptions(accumulator.dtype));
    for (int64_t here = 0; here < replicas_.here; ++here) {
      put_shard(state.gathered, replicas_.first + here, replicas_.all, state.of_replica[here]);
    }
    wholes.push_back(state.gathered);
  }
  ring_->all_gather(number, wholes, replicas_.here);
}

}  // namespace poptorch_emu
