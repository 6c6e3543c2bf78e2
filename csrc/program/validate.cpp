// What a program must be like, so that it cannot fail for its form while it runs.

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/errors.h"
#include "program/program.h"
#include "program/register_checker.h"

namespace poptorch_emu {
namespace {

template <typename Table, typename Tag>
void check_id(const Table& table, Id<Tag> id, const std::string& where, const char* what) {
  if (id.value < 0 || id.value >= static_cast<int64_t>(table.size())) {
    throw Error(where + " names " + what + " " + std::to_string(id.value) + ", but there are " +
                std::to_string(table.size()));
  }
}

// Checks one segment: its registers, and that what it names exists.
class SegmentChecker {
 public:
  SegmentChecker(const Program& program, const Segment& segment)
      : program_(program),
        segment_(segment),
        registers_(segment.num_registers, "segment '" + segment.name + "'") {}

  void run() {
    const std::string where = "A reduction of segment '" + segment_.name + "'";
    for (AccumulatorId id : segment_.reductions) {
      check_id(program_.accumulators, id, where, "accumulator");
    }
    for (const Load& load : segment_.loads) {
      check_source(load.source);
      registers_.write(load.target, "a load");
    }
    for (LinkId id : segment_.incoming) {
      for (RegisterId target : program_.links[id.value].consumer_registers) {
        registers_.write(target, "a link");
      }
    }
    for (const Instruction& instruction : segment_.instructions) registers_.check(instruction);
    for (const Store& store : segment_.stores) {
      check_target(store.target);
      registers_.read(store.source, "a store");
    }
    for (LinkId id : segment_.outgoing) {
      for (RegisterId source : program_.links[id.value].producer_registers) {
        registers_.read(source, "a link");
      }
    }
  }

 private:
  void check_source(const LoadSource& source) const {
    const std::string where = "A load of segment '" + segment_.name + "'";
    if (const auto* load = std::get_if<LoadInput>(&source)) {
      check_id(program_.inputs, load->input, where, "input");
    } else if (const auto* load = std::get_if<LoadVariable>(&source)) {
      check_id(program_.variables, load->variable, where, "variable");
    } else if (const auto* load = std::get_if<LoadConstant>(&source)) {
      check_id(program_.constants, load->constant, where, "constant");
    } else if (const auto* load = std::get_if<LoadScalar>(&source)) {
      check_id(program_.scalars, load->scalar, where, "scalar");
    } else if (const auto* load = std::get_if<LoadAccumulator>(&source)) {
      check_id(program_.accumulators, load->accumulator, where, "accumulator");
      if (segment_.kind != SegmentKind::kWindow) {
        throw Error(where + " reads an accumulator, which only a window segment may do");
      }
    }
  }

  void check_target(const StoreTarget& target) const {
    const std::string where = "A store of segment '" + segment_.name + "'";
    if (const auto* store = std::get_if<StoreOutput>(&target)) {
      check_id(program_.outputs, store->output, where, "output");
    } else if (const auto* store = std::get_if<StoreVariable>(&target)) {
      check_id(program_.variables, store->variable, where, "variable");
      check_assignment(program_.variables[store->variable.value], store->is_shard, where);
    } else if (const auto* store = std::get_if<Accumulate>(&target)) {
      check_id(program_.accumulators, store->accumulator, where, "accumulator");
      if (has_one_runner()) {
        throw Error(where + " adds to an accumulator, which in a window every replica must do");
      }
    }
  }

  void check_assignment(const Variable& variable, bool is_shard, const std::string& where) const {
    if (variable.is_per_replica && has_one_runner()) {
      throw Error(where + " assigns a variable that each replica has its own of");
    }
    if (variable.is_sharded && !is_shard) {
      throw Error(where + " assigns the whole of '" + variable.name +
                  "', of which each replica holds a part");
    }
  }

  bool has_one_runner() const {
    return segment_.kind == SegmentKind::kWindow && segment_.runners.size() == 1;
  }

  const Program& program_;
  const Segment& segment_;
  RegisterChecker registers_;
};

void check_links(const Program& program) {
  std::set<std::tuple<SegmentId, SegmentId, bool>> seen;
  for (const Link& link : program.links) {
    const std::string where = "A link";
    check_id(program.segments, link.producer, where, "segment");
    check_id(program.segments, link.consumer, where, "segment");
    if (link.producer_registers.size() != link.consumer_registers.size() || link.capacity < 1) {
      throw Error("The link from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name +
                  "' needs as many registers at both ends and room for at least one item");
    }
    const Segment& producer = program.at(link.producer);
    if (producer.kind == SegmentKind::kWindow && producer.runners.size() > 1 &&
        producer.runners != program.at(link.consumer).runners) {
      throw Error("The link from '" + producer.name + "' to '" + program.at(link.consumer).name +
                  "' needs the same runners at both ends, or one that sends");
    }
    if (!seen.insert({link.producer, link.consumer, link.is_remote}).second) {
      throw Error("There are two links from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name + "'");
    }
  }
}

// Outputs and sums of gradients take the pieces of a window in order, each from one store.
void check_stores(const Program& program) {
  std::vector<int64_t> num_stores(program.outputs.size(), 0);
  std::vector<int64_t> num_additions(program.accumulators.size(), 0);
  for (const Segment& segment : program.segments) {
    for (const Store& store : segment.stores) {
      if (const auto* target = std::get_if<StoreOutput>(&store.target)) {
        if (++num_stores[target->output.value] > 1) {
          throw Error("Output " + std::to_string(target->output.value) +
                      " is stored twice, the second time in segment '" + segment.name + "'");
        }
      } else if (const auto* target = std::get_if<Accumulate>(&store.target)) {
        if (++num_additions[target->accumulator.value] > 1) {
          throw Error("Accumulator '" + program.accumulators[target->accumulator.value].name +
                      "' is added to by two stores, the second one in segment '" + segment.name +
                      "'");
        }
      }
    }
  }
}

void check_action(const Program& program, const Action& action, int64_t ipu, int64_t last) {
  const Segment& segment = program.at(action.segment);
  const std::string micro_batch = std::to_string(action.micro_batch);
  if (segment.ipu != ipu) {
    throw Error("IPU " + std::to_string(ipu) + " is to run '" + segment.name +
                "', which belongs to IPU " + std::to_string(segment.ipu));
  }
  if (action.micro_batch < 0) {
    throw Error("'" + segment.name + "' runs for micro-batch " + micro_batch +
                ", but they are counted from 0");
  }
  if (action.micro_batch == last) {
    throw Error("'" + segment.name + "' runs twice for micro-batch " + micro_batch);
  }
  if (action.micro_batch < last) {
    throw Error("'" + segment.name + "' runs for micro-batch " + micro_batch + " after " +
                std::to_string(last) + ", but their order is the order of their numbers");
  }
}

void check_schedule(const Program& program) {
  std::vector<int64_t> last(program.segments.size(), -1);
  std::vector<int64_t> count(program.segments.size(), 0);
  for (size_t ipu = 0; ipu < program.schedule.size(); ++ipu) {
    for (const Action& action : program.schedule[ipu]) {
      check_id(program.segments, action.segment, "The schedule", "segment");
      const int64_t id = action.segment.value;
      check_action(program, action, static_cast<int64_t>(ipu), last[id]);
      last[id] = action.micro_batch;
      ++count[id];
    }
  }
  for (size_t id = 0; id < program.segments.size(); ++id) {
    const Segment& segment = program.segments[id];
    const int64_t expected =
        segment.kind == SegmentKind::kWindow ? 1 : program.micro_batches_per_window;
    if (count[id] != expected || last[id] + 1 != expected) {
      throw Error("'" + segment.name + "' is scheduled " + std::to_string(count[id]) +
                  " times in a window instead of " + std::to_string(expected));
    }
  }
}

void check_groups(const ReplicaGroups& groups, const std::string& name, int64_t num_replicas) {
  const std::vector<int64_t>& of_replica = groups.of_replica;
  const bool is_empty = of_replica.empty();
  if (!is_empty && (static_cast<int64_t>(of_replica.size()) != num_replicas ||
                    *std::min_element(of_replica.begin(), of_replica.end()) < 0)) {
    throw Error("'" + name + "' needs a group, counted from 0, for each of " +
                std::to_string(num_replicas) + " replicas");
  }
}

// The replicas that run a segment.
std::vector<int64_t> runners_of(const Segment& segment, int64_t num_replicas) {
  if (segment.kind == SegmentKind::kWindow) return segment.runners;
  std::vector<int64_t> everyone(num_replicas);
  std::iota(everyone.begin(), everyone.end(), 0);
  return everyone;
}

void check_runners(const Segment& segment, int64_t num_replicas) {
  std::set<int64_t> seen;
  for (int64_t replica : segment.runners) {
    if (replica < 0 || replica >= num_replicas || !seen.insert(replica).second) {
      throw Error("Segment '" + segment.name + "' is to be run by replica " +
                  std::to_string(replica) + ", which must be one of " +
                  std::to_string(num_replicas) + ", each named once");
    }
  }
}

// Two replicas that assign one copy would race for it.
void check_assigned_once(const Variable& variable, const Segment& segment, int64_t num_replicas) {
  if (variable.is_per_replica) return;
  std::set<int64_t> assigned;
  for (int64_t replica : runners_of(segment, num_replicas)) {
    if (!assigned.insert(variable.groups.of(replica)).second) {
      throw Error("Segment '" + segment.name + "' assigns '" + variable.name +
                  "' on several replicas that share it; each needs its own");
    }
  }
}

}  // namespace

void Program::validate() const {
  if (micro_batches_per_window < 1) {
    throw Error("A window has at least 1 micro-batch, not " +
                std::to_string(micro_batches_per_window));
  }
  for (const Output& output : outputs) {
    if (output.period < 1) {
      throw Error("An output's period is at least 1, not " + std::to_string(output.period));
    }
  }
  check_links(*this);
  for (const Segment& segment : segments) SegmentChecker(*this, segment).run();
  check_stores(*this);
  check_schedule(*this);
}

void Program::check_replicas(int64_t num_replicas) const {
  for (const Variable& variable : variables) {
    check_groups(variable.groups, variable.name, num_replicas);
  }
  for (const Accumulator& accumulator : accumulators) {
    check_groups(accumulator.groups, accumulator.name, num_replicas);
  }
  for (const Segment& segment : segments) {
    check_runners(segment, num_replicas);
    for (const Store& store : segment.stores) {
      const auto* target = std::get_if<StoreVariable>(&store.target);
      if (target != nullptr && !target->is_shard) {
        check_assigned_once(variables[target->variable.value], segment, num_replicas);
      }
    }
  }
}

}  // namespace poptorch_emu
