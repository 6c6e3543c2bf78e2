#include "runtime/accumulators.h"

#include <algorithm>
#include <stdexcept>

#include "common/errors.h"
#include "runtime/floating_point.h"
#include "runtime/half_sum.h"
#include "runtime/shards.h"

namespace poptorch_emu {
namespace {

// Adds up part `index` of the values, in the order of a ring: the next one first, its own last.
at::Tensor ring_sum(const std::vector<const at::Tensor*>& values, int64_t index) {
  const int64_t count = static_cast<int64_t>(values.size());
  at::Tensor sum = shard_of(*values[(index + 1) % count], index, count).clone();
  for (int64_t step = 2; step <= count; ++step) {
    sum.add_(shard_of(*values[(index + step) % count], index, count));
  }
  return sum;
}

// The state of the random numbers of another replica: whoever comes last, the bits are the same.
at::Tensor with_replica(const at::Tensor& rng, int64_t replica) {
  at::Tensor other = rng.clone();
  other.mutable_data_ptr<int64_t>()[2] = replica;
  return other;
}

}  // namespace

Accumulators::Accumulators(const Program& program, int64_t num_replicas, RemoteTraffic& remote)
    : program_(program), num_replicas_(num_replicas), remote_(remote) {
  for (const Accumulator& accumulator : program.accumulators) {
    auto state = std::make_unique<State>();
    state->of_replica.resize(num_replicas);
    state->arrived.resize(num_replicas);
    states_.push_back(std::move(state));
    std::vector<std::vector<int64_t>> of_replica(num_replicas);
    for (int64_t replica = 0; replica < num_replicas; ++replica) {
      for (int64_t other = 0; other < num_replicas; ++other) {
        if (accumulator.groups.of(replica) == accumulator.groups.of(other)) {
          of_replica[replica].push_back(other);
        }
      }
    }
    members_.push_back(std::move(of_replica));
  }
}

const std::vector<int64_t>& Accumulators::members(AccumulatorId id, int64_t replica) const {
  return members_[id.value][replica];
}

void Accumulators::add(AccumulatorId id, int64_t replica, at::Tensor value, int64_t index,
                       const at::Tensor& rng) {
  State& state = *states_[id.value];
  if (program_.accumulators[id.value].is_sharded) {
    add_sharded(id, replica, value, index, rng);
    return;
  }
  // Parts are cut in row-major order, so replicas must agree on the order of the elements.
  if (members(id, replica).size() > 1 && !value.is_contiguous()) value = value.contiguous();
  add_to(state.of_replica[replica], id, std::move(value), index, rng);
}

// What lives in streaming memory comes to the IPU for the addition and goes back.

void Accumulators::add_to(at::Tensor& kept, AccumulatorId id, at::Tensor value, int64_t index,
                          const at::Tensor& rng) {
  if (!program_.accumulators[id.value].is_remote) {
    add_on_chip(kept, id, std::move(value), index, rng);
    return;
  }
  at::Tensor sum = index == 0 || !kept.defined() ? at::Tensor() : remote_.load(kept);
  add_on_chip(sum, id, std::move(value), index, rng);
  kept = remote_.store(sum);
}

void Accumulators::add_on_chip(at::Tensor& sum, AccumulatorId id, at::Tensor value, int64_t index,
                               const at::Tensor& rng) {
  const Accumulator& accumulator = program_.accumulators[id.value];
  if (accumulator.dtype == at::kHalf) {
    sum = add_in_half(sum, value, accumulator, id, index, program_.numerics, rng);
  } else if (index == 0 || !sum.defined()) {
    if (value.scalar_type() != accumulator.dtype) {
      sum = value.to(accumulator.dtype);
    } else if (value.use_count() == 1 && value.storage().use_count() == 1 &&
               value.is_non_overlapping_and_dense()) {
      sum = std::move(value);
    } else {
      sum = value.clone();
    }
  } else if (accumulator.is_running_mean) {
    const double n = static_cast<double>(index);
    sum.mul_(n / (n + 1.0)).add_(value.to(accumulator.dtype), 1.0 / (n + 1.0));
  } else {
    sum.add_(value.to(accumulator.dtype));
  }
  if (program_.numerics.checks_floating_point && !is_finite(sum)) {
    throw std::domain_error("floating-point exception: the accumulated gradient of '" +
                            accumulator.name + "' is not finite.");
  }
}

void Accumulators::add_sharded(AccumulatorId id, int64_t replica, const at::Tensor& value,
                               int64_t index, const at::Tensor& rng) {
  const Accumulator& accumulator = program_.accumulators[id.value];
  State& state = *states_[id.value];
  std::lock_guard lock(state.mutex);
  state.sizes = value.sizes().vec();
  state.arrived[replica] = value.to(accumulator.dtype);
  if (++state.num_arrived < num_replicas_) return;
  std::vector<const at::Tensor*> values;
  for (const at::Tensor& arrived : state.arrived) values.push_back(&arrived);
  for (int64_t part = 0; part < num_replicas_; ++part) {
    add_to(state.of_replica[part], id, ring_sum(values, part), index, with_replica(rng, part));
  }
  for (at::Tensor& arrived : state.arrived) arrived.reset();
  state.num_arrived = 0;
}

void Accumulators::reduce(AccumulatorId id, int64_t replica) {
  State& state = *states_[id.value];
  const std::vector<int64_t>& group = members(id, replica);
  std::vector<const at::Tensor*> values;
  for (int64_t member : group) {
    if (!state.of_replica[member].defined()) {
      throw Error("Accumulator '" + program_.accumulators[id.value].name + "' is empty.");
    }
    values.push_back(&state.of_replica[member]);
  }
  const int64_t count = static_cast<int64_t>(group.size());
  const int64_t index = std::find(group.begin(), group.end(), replica) - group.begin();
  // The members share one copy of the total, which takes the place of the first one's sum: nobody
  // else reads this part of it.
  put_shard(state.of_replica[group.front()], index, count, ring_sum(values, index));
  ++state.num_reduced;
}

at::Tensor Accumulators::total(AccumulatorId id, int64_t replica) const {
  const State& state = *states_[id.value];
  const Accumulator& accumulator = program_.accumulators[id.value];
  const std::vector<int64_t>& group = members(id, replica);
  const at::Tensor& first = state.of_replica[group.front()];
  if (!first.defined()) throw Error("Accumulator '" + accumulator.name + "' is empty.");
  if (accumulator.is_sharded) return gathered(state.of_replica, state.sizes);
  if (group.size() > 1 && state.num_reduced == 0) {
    throw Error("Accumulator '" + accumulator.name +
                "' was not added up over its replicas: a window segment must reduce it first.");
  }
  return first;
}

at::Tensor Accumulators::total_shard(AccumulatorId id, int64_t replica) const {
  const State& state = *states_[id.value];
  if (program_.accumulators[id.value].is_sharded) return state.of_replica[replica];
  return shard_of(total(id, replica), replica, num_replicas_);
}

void Accumulators::clear() {
  for (const auto& state : states_) {
    for (at::Tensor& tensor : state->of_replica) tensor.reset();
    for (at::Tensor& tensor : state->arrived) tensor.reset();
    state->num_arrived = 0;
    state->num_reduced = 0;
  }
}

int64_t Accumulators::bytes(int64_t replica) const {
  int64_t bytes = 0;
  for (const auto& state : states_) {
    const at::Tensor& tensor = state->of_replica[replica];
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace poptorch_emu
