// Checks whether a valid program can run on a number of replicas.

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

void check_groups(const ReplicaGroups& groups, const std::string& name, int64_t num_replicas) {
  const std::vector<int64_t>& of_replica = groups.of_replica;
  if (of_replica.empty()) return;
  const auto [least, most] = std::minmax_element(of_replica.begin(), of_replica.end());
  if (static_cast<int64_t>(of_replica.size()) != num_replicas || *least < 0 ||
      *most >= num_replicas) {
    throw Error("'" + name + "' needs a group, counted from 0, for each of " +
                std::to_string(num_replicas) + " replicas, and no more groups than replicas");
  }
}

// Checks one segment: the replicas that run it, and the sums, variables and outputs they share.
class ReplicaChecker {
 public:
  ReplicaChecker(const Program& program, const Segment& segment, int64_t num_replicas)
      : program_(program),
        segment_(segment),
        num_replicas_(num_replicas),
        is_runner_(num_replicas, false) {
    check_runners();
    if (segment.kind == SegmentKind::kWindow) {
      runners_ = segment.runners;
    } else {
      runners_.resize(num_replicas);
      std::iota(runners_.begin(), runners_.end(), 0);
    }
    for (int64_t replica : runners_) is_runner_[replica] = true;
  }

  void run() const {
    for (AccumulatorId id : segment_.reductions) check_reduction(id);
    for (const Store& store : segment_.stores) {
      if (const auto* target = std::get_if<StoreVariable>(&store.target)) {
        const Variable& variable = program_.variables[target->variable.value];
        target->is_shard ? check_parts(variable) : check_assigned_once(variable);
      } else if (std::holds_alternative<StoreOutput>(store.target)) {
        check_output();
      } else if (const auto* sum = std::get_if<Accumulate>(&store.target)) {
        check_addition(program_.accumulators[sum->accumulator.value]);
      } else if (std::holds_alternative<StoreVariableRows>(store.target)) {
        check_alone();
      }
    }
    for (const Instruction& instruction : segment_.instructions) {
      if (instruction.control == Control::kUpdateRows) check_alone();
    }
  }

 private:
  void check_runners() const {
    std::set<int64_t> seen;
    for (int64_t replica : segment_.runners) {
      if (replica < 0 || replica >= num_replicas_ || !seen.insert(replica).second) {
        throw Error("Segment '" + segment_.name + "' is to be run by replica " +
                    std::to_string(replica) + ", which must be one of " +
                    std::to_string(num_replicas_) + ", each named once");
      }
    }
  }

  // Rejects several replicas, because none knows to which rows the others added gradients.
  void check_alone() const {
    if (num_replicas_ == 1) return;
    throw Error("Segment '" + segment_.name + "' updates single rows, which one replica can do, " +
                "but there are " + std::to_string(num_replicas_));
  }

  bool runs_everywhere() const { return static_cast<int64_t>(runners_.size()) == num_replicas_; }

  // Checks that all members of a group reduce: each adds its part of the sum, and none sees the
  // whole sum before all are done.
  void check_reduction(AccumulatorId id) const {
    const Accumulator& accumulator = program_.accumulators[id.value];
    for (int64_t replica = 0; replica < num_replicas_; ++replica) {
      for (int64_t runner : runners_) {
        if (replica == runner || accumulator.groups.of(replica) != accumulator.groups.of(runner)) {
          continue;
        }
        if (!is_runner_[replica]) {
          throw Error("Segment '" + segment_.name + "' adds up '" + accumulator.name +
                      "' over a group of replicas on replica " + std::to_string(runner) +
                      ", but not on " + std::to_string(replica) + "; each does a part of the sum");
        }
        if (loads(id)) {
          throw Error("Segment '" + segment_.name + "' adds up '" + accumulator.name +
                      "' over replicas and reads it, which a later segment must do");
        }
      }
    }
  }

  bool loads(AccumulatorId id) const {
    return std::any_of(segment_.loads.begin(), segment_.loads.end(), [id](const Load& load) {
      const auto* source = std::get_if<LoadAccumulator>(&load.source);
      return source != nullptr && source->accumulator == id;
    });
  }

  // Checks that no two replicas assign the same copy of a variable, because they would race.
  void check_assigned_once(const Variable& variable) const {
    if (variable.is_per_replica) return;
    std::set<int64_t> assigned;
    for (int64_t replica : runners_) {
      if (!assigned.insert(variable.groups.of(replica)).second) {
        throw Error("Segment '" + segment_.name + "' assigns '" + variable.name +
                    "' on several replicas that share it; each needs its own");
      }
    }
  }

  // Checks that all replicas assign their parts, which together form the only copy of the variable.
  void check_parts(const Variable& variable) const {
    const std::string where =
        "Segment '" + segment_.name + "' assigns a part of '" + variable.name + "' ";
    if (!runs_everywhere()) {
      throw Error(where + "on " + std::to_string(runners_.size()) + " of " +
                  std::to_string(num_replicas_) + " replicas, but each must assign its own");
    }
    const std::vector<int64_t>& groups = variable.groups.of_replica;
    const bool has_groups =
        std::any_of(groups.begin(), groups.end(), [](int64_t group) { return group != 0; });
    if (!variable.is_sharded && num_replicas_ > 1 && (variable.is_per_replica || has_groups)) {
      throw Error(where + "on each replica, but replicas have whole copies of their own of it");
    }
  }

  void check_addition(const Accumulator& accumulator) const {
    if (runs_everywhere()) return;
    throw Error("Segment '" + segment_.name + "' adds to '" + accumulator.name + "' on " +
                std::to_string(runners_.size()) + " of " + std::to_string(num_replicas_) +
                " replicas, but each must add its own");
  }

  // Checks that one replica, or each of them, stores the output.
  void check_output() const {
    if (runners_.size() != 1 && !runs_everywhere()) {
      throw Error("Segment '" + segment_.name + "' gives an output on " +
                  std::to_string(runners_.size()) + " of " + std::to_string(num_replicas_) +
                  " replicas; one must do so for all, or each for itself");
    }
  }

  const Program& program_;
  const Segment& segment_;
  const int64_t num_replicas_;
  std::vector<int64_t> runners_;
  std::vector<bool> is_runner_;  // for each replica
};

// Checks that no sum is reduced twice, because the second reduction would add the total to partial
// sums, and that it is read on its own IPU, because other IPUs do not wait for all parts.
void check_reductions(const Program& program) {
  std::map<AccumulatorId, int64_t> ipu_of;
  std::set<std::pair<AccumulatorId, int64_t>> reduced;
  for (const Segment& segment : program.segments) {
    for (AccumulatorId id : segment.reductions) {
      ipu_of[id] = segment.ipu;
      for (int64_t replica : segment.runners) {
        if (!reduced.insert({id, replica}).second) {
          throw Error("Accumulator '" + program.accumulators[id.value].name +
                      "' is added up over replicas twice, the second time in segment '" +
                      segment.name + "'");
        }
      }
    }
  }
  for (const Segment& segment : program.segments) {
    for (const Load& load : segment.loads) {
      const auto* source = std::get_if<LoadAccumulator>(&load.source);
      if (source == nullptr || !ipu_of.contains(source->accumulator)) continue;
      if (ipu_of[source->accumulator] != segment.ipu) {
        throw Error("Segment '" + segment.name + "' on IPU " + std::to_string(segment.ipu) +
                    " reads accumulator '" + program.accumulators[source->accumulator.value].name +
                    "', which is added up over replicas on IPU " +
                    std::to_string(ipu_of[source->accumulator]));
      }
    }
  }
}

// Checks that a program with several processes has all exchanges that keep the weights equal.
class ProcessChecker {
 public:
  explicit ProcessChecker(const Program& program) : program_(program) {
    for (const Segment& segment : program.segments) {
      for (const auto* ids : {&segment.exchanges, &segment.scatters}) {
        summed_.insert(ids->begin(), ids->end());
      }
      gathered_.insert(segment.gathers.begin(), segment.gathers.end());
      if (segment.has_exchanges() || segment.relays()) row_ = segment.ipu;
      if (segment.relays()) relayed_.insert(segment.relayed);
    }
    for (const Segment& segment : program.segments) {
      for (const Store& store : segment.stores) note_store(segment, store);
    }
  }

  void check_alone() const {
    if (!summed_.empty()) {
      throw Error("The program adds up '" + program_.accumulators[summed_.begin()->value].name +
                  "' over several processes, but it was given no others");
    }
    if (!gathered_.empty()) {
      throw Error("The program gathers '" + program_.variables[gathered_.begin()->value].name +
                  "' from several processes, but it was given no others");
    }
    if (!relayed_.empty()) {
      throw Error("Segment '" + program_.at(relayed_.begin()->segment).name +
                  "' exchanges values with replicas of other processes, but the program was given "
                  "no others");
    }
  }

  void check_together() const {
    for (size_t index = 0; index < program_.accumulators.size(); ++index) {
      if (summed_.contains({static_cast<int64_t>(index)})) continue;
      throw Error("The program runs in several processes, which must add up '" +
                  program_.accumulators[index].name + "', but no segment exchanges it");
    }
    for (VariableId id : assigned_in_parts_) {
      if (gathered_.contains(id)) continue;
      throw Error("The program runs in several processes, each of which assigns parts of '" +
                  program_.variables[id.value].name + "', but no segment gathers it");
    }
    check_collectives();
    for (const Variable& variable : program_.variables) {
      if (!variable.is_sharded) continue;
      throw Error("'" + variable.name +
                  "' is stored in parts, which is not possible in several processes");
    }
  }

 private:
  void check_collectives() const {
    for (size_t segment = 0; segment < program_.segments.size(); ++segment) {
      const auto collectives = program_.segments[segment].collectives();
      for (size_t index = 0; index < collectives.size(); ++index) {
        const SegmentId id{static_cast<int64_t>(segment)};
        if (relayed_.contains({id, static_cast<int64_t>(index)})) continue;
        throw Error("The program runs in several processes, whose replicas exchange values in '" +
                    collectives[index]->debug.node + "', but no segment carries that out");
      }
    }
  }

  // Records sharded sums to which the network's row adds gradients in each micro-batch.
  void note_store(const Segment& segment, const Store& store) {
    const auto* variable = std::get_if<StoreVariable>(&store.target);
    if (variable != nullptr && variable->is_shard) assigned_in_parts_.insert(variable->variable);
    const auto* sum = std::get_if<Accumulate>(&store.target);
    if (sum != nullptr && segment.ipu == row_) summed_.insert(sum->accumulator);
  }

  const Program& program_;
  int64_t row_ = -1;
  std::set<AccumulatorId> summed_;
  std::set<VariableId> gathered_;
  std::set<VariableId> assigned_in_parts_;
  std::set<CollectiveId> relayed_;
};

}  // namespace

void Program::check_replicas(int64_t num_replicas, bool has_peers) const {
  const ProcessChecker processes(*this);
  has_peers ? processes.check_together() : processes.check_alone();
  for (const Variable& variable : variables) {
    check_groups(variable.groups, variable.name, num_replicas);
  }
  for (const Accumulator& accumulator : accumulators) {
    check_groups(accumulator.groups, accumulator.name, num_replicas);
  }
  for (const Segment& segment : segments) ReplicaChecker(*this, segment, num_replicas).run();
  check_reductions(*this);
}

}  // namespace poptorch_emu
