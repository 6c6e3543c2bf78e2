#include "runtime/gradients/accumulators.h"

namespace poptorch_emu {

Accumulators::Accumulators(const Program& program, const Replicas& replicas, int64_t num_lanes,
                           RemoteTraffic& remote, Ring* ring)
    : replicas_(replicas), ring_(ring) {
  for (size_t id = 0; id < program.accumulators.size(); ++id) {
    sums_.emplace_back(program, AccumulatorId{static_cast<int64_t>(id)}, replicas, num_lanes,
                       remote, ring);
  }
}

std::vector<Ring::Summands> Accumulators::summands_of(const std::vector<AccumulatorId>& ids) {
  std::vector<Ring::Summands> tensors;
  for (AccumulatorId id : ids) tensors.push_back((*this)[id].summands());
  return tensors;
}

void Accumulators::exchange(const std::vector<AccumulatorId>& ids, int64_t number) {
  const std::vector<Ring::Summands> tensors = summands_of(ids);
  ring_->all_reduce(number, tensors);
  for (size_t i = 0; i < ids.size(); ++i) {
    GradientSum& own = (*this)[ids[i]];
    own.of(0).check(tensors[i].front());
    own.replace_by(tensors[i].front());
  }
}

void Accumulators::scatter(const std::vector<AccumulatorId>& ids, int64_t number) {
  const std::vector<Ring::Summands> tensors = summands_of(ids);
  ring_->reduce_scatter(number, tensors);
  for (size_t i = 0; i < ids.size(); ++i) {
    GradientSum& own = (*this)[ids[i]];
    for (int64_t here = 0; here < replicas_.here; ++here) {
      own.of(here).check(shard_of(tensors[i].front(), replicas_.first + here, replicas_.all));
    }
    own.replace_by(tensors[i].front());
  }
}

void Accumulators::gather(const std::vector<AccumulatorId>& ids, int64_t number) {
  std::vector<at::Tensor> wholes;
  for (AccumulatorId id : ids) wholes.push_back((*this)[id].begin_whole());
  ring_->all_gather(number, wholes, replicas_.here);
}

void Accumulators::clear() {
  for (GradientSum& sum : sums_) sum.clear();
}

int64_t Accumulators::bytes(int64_t replica) const {
  int64_t bytes = 0;
  for (const GradientSum& sum : sums_) bytes += sum.of(replica).num_bytes();
  return bytes;
}

}  // namespace poptorch_emu
