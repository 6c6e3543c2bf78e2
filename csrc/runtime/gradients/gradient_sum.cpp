#include "runtime/gradients/gradient_sum.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Returns another replica's random state, so that no bit depends on the replica that comes last.
at::Tensor with_replica(const at::Tensor& rng, int64_t replica) {
  if (!rng.defined()) return rng;
  at::Tensor other = rng.clone();
  other.mutable_data_ptr<int64_t>()[2] = replica;
  return other;
}

std::vector<int64_t> group_of(const ReplicaGroups& groups, int64_t replica, int64_t num_replicas) {
  std::vector<int64_t> group;
  for (int64_t other = 0; other < num_replicas; ++other) {
    if (groups.of(replica) == groups.of(other)) group.push_back(other);
  }
  return group;
}

}  // namespace

GradientSum::GradientSum(const Program& program, AccumulatorId id, const Replicas& replicas,
                         int64_t num_lanes, RemoteTraffic& remote, Ring* ring)
    : id_(id),
      accumulator_(program.accumulators[id.value]),
      replicas_(replicas),
      remote_(remote),
      ring_(ring),
      arrived_(replicas.here) {
  for (int64_t replica = 0; replica < replicas.here; ++replica) {
    std::vector<int64_t> group = group_of(accumulator_.groups, replica, replicas.here);
    members_.push_back({std::move(group)});
    sums_.emplace_back(program, id, is_alone(replica), num_lanes, remote);
  }
}

bool GradientSum::add(int64_t replica, at::Tensor& value, int64_t index, const at::Tensor& rng) {
  if (!accumulator_.is_sharded) return of(replica).add(value, index, rng);
  const std::lock_guard lock(mutex_);
  sizes_ = value.sizes().vec();
  arrived_[replica] = value.to(accumulator_.dtype);
  if (++num_arrived_ < replicas_.here) return true;
  std::vector<at::Tensor> sums = sums_of_arrived_parts();
  for (int64_t here = 0; here < replicas_.here; ++here) {
    of(here).add_next(std::move(sums[here]), index, with_replica(rng, replicas_.first + here));
    arrived_[here].reset();
  }
  num_arrived_ = 0;
  return true;
}

// Returns, for each replica, its part of the sum over all contributions that have arrived.
std::vector<at::Tensor> GradientSum::sums_of_arrived_parts() {
  if (ring_ == nullptr) return ring_sums(arrived_);
  // Sums are computed in place, so they need copies of summands that others may still read.
  Ring::Summands own;
  for (const at::Tensor& each : arrived_) own.push_back(each.clone(at::MemoryFormat::Contiguous));
  ring_->reduce_scatter(id_.value, {own});
  std::vector<at::Tensor> sums;
  for (int64_t here = 0; here < replicas_.here; ++here) {
    sums.push_back(shard_of(own.front(), replicas_.first + here, replicas_.all));
  }
  return sums;
}

void GradientSum::reduce(int64_t replica) {
  const std::vector<int64_t>& group = members_[replica].group;
  const int64_t count = static_cast<int64_t>(group.size());
  const int64_t index = std::find(group.begin(), group.end(), replica) - group.begin();
  std::vector<at::Tensor> parts;
  for (int64_t other : group) {
    const at::Tensor part = shard_of(filled(of(other).tensor()), index, count);
    parts.push_back(accumulator_.is_remote ? remote_.load(part) : part);
  }
  const at::Tensor sum = ring_sum(parts, index);
  of(replica).check(sum);
  // The members share one copy of the total, in the memory of the first member's sum. No other
  // member reads this part of it.
  put_shard(of(group.front()).tensor(), index, count,
            accumulator_.is_remote ? remote_.store(sum) : sum);
  members_[replica].is_reduced = true;
}

Ring::Summands GradientSum::summands() {
  Ring::Summands summands;
  for (const ReplicaSum& sum : sums_) {
    const at::Tensor& whole = filled(sum.tensor());
    summands.push_back(accumulator_.is_remote ? remote_.load(whole) : whole.contiguous());
  }
  return summands;
}

void GradientSum::replace_by(const at::Tensor& sum_of_all) {
  of(0).tensor() = accumulator_.is_remote ? remote_.store(sum_of_all) : sum_of_all;
  for (Member& member : members_) member.is_reduced = true;
}

at::Tensor GradientSum::begin_whole() {
  whole_ = at::empty(sizes_, at::TensorOptions(accumulator_.dtype));
  for (int64_t here = 0; here < replicas_.here; ++here) {
    put_shard(whole_, replicas_.first + here, replicas_.all, of(here).tensor());
  }
  return whole_;
}

at::Tensor GradientSum::total(int64_t replica) {
  if (RowSum& rows = of(replica).rows(); rows.is_begun()) {
    const std::lock_guard lock(mutex_);  // several parts of an update may read in parallel
    return rows.whole();
  }
  const std::vector<int64_t>& group = members_[replica].group;
  const at::Tensor& first = filled(of(group.front()).tensor());
  if (whole_.defined()) return whole_;
  if (accumulator_.is_sharded) return gathered(shards(), sizes_);
  const bool is_reduced = std::all_of(
      group.begin(), group.end(), [this](int64_t member) { return members_[member].is_reduced; });
  if (!is_alone(replica) && !is_reduced) {
    throw Error("Accumulator '" + accumulator_.name +
                "' was not added up over its replicas: a window segment must reduce it first.");
  }
  return first;
}

at::Tensor GradientSum::total_shard(int64_t replica) {
  if (accumulator_.is_sharded) return filled(of(replica).tensor());
  return shard_of(total(replica), replicas_.first + replica, replicas_.all);
}

at::Tensor GradientSum::touched_rows(int64_t replica) {
  const std::lock_guard lock(mutex_);
  return of(replica).rows().indices();
}

at::Tensor GradientSum::sums_of_touched_rows(int64_t replica) {
  const std::lock_guard lock(mutex_);
  return of(replica).rows().values();
}

void GradientSum::clear() {
  for (ReplicaSum& sum : sums_) sum.clear();
  for (Member& member : members_) member.is_reduced = false;
  for (at::Tensor& each : arrived_) each.reset();
  num_arrived_ = 0;
  whole_.reset();
}

bool GradientSum::is_alone(int64_t replica) const {
  return ring_ == nullptr && members_[replica].group.size() == 1;
}

const at::Tensor& GradientSum::filled(const at::Tensor& tensor) const {
  if (!tensor.defined()) throw Error("Accumulator '" + accumulator_.name + "' is empty.");
  return tensor;
}

std::vector<at::Tensor> GradientSum::shards() const {
  std::vector<at::Tensor> shards;
  for (const ReplicaSum& sum : sums_) shards.push_back(sum.tensor());
  return shards;
}

}  // namespace poptorch_emu
