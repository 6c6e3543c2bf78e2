// Checks the path of micro-batches, so that it has the same results as the lists of the schedule.

#include <map>
#include <string>
#include <vector>

#include "common/errors.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

[[noreturn]] void refuse(const Segment& segment, const std::string& reason) {
  throw Error("'" + segment.name + "' cannot be in the path of micro-batches, because " + reason);
}

// Returns the freest turns that leave the order of a store's results unchanged. Output pieces have
// fixed positions, and some sums restore the order themselves.
Turns freest_turns(const Program& program, const StoreTarget& target) {
  if (std::holds_alternative<StoreVariable>(target)) return Turns::kOneByOne;
  bool is_free = false;
  if (const auto* output = std::get_if<StoreOutput>(&target)) {
    is_free = program.outputs[output->output.value].mode != OutputMode::kSum;
  } else if (const auto* sum = std::get_if<Accumulate>(&target)) {
    is_free = program.adds_in_any_order(sum->accumulator);
  } else if (const auto* rows = std::get_if<AccumulateRows>(&target)) {
    is_free = program.adds_in_any_order(rows->accumulator);
  }
  return is_free ? Turns::kAnyOrder : Turns::kInTurn;
}

void check_segment(const Program& program, const Segment& segment) {
  if (program.is_collective(segment) || !segment.collectives().empty() || segment.relays()) {
    refuse(segment, "it waits for other replicas");
  }
  if (segment.is_seen_outside) refuse(segment, "the order of its runs is visible");
  for (const Store& store : segment.stores) {
    if (segment.turns > freest_turns(program, store.target)) {
      refuse(segment, "its stores need the order of the micro-batches");
    }
  }
}

// Checks that a variable that one segment writes is used by this segment only.
void check_variables(const Program& program) {
  std::map<VariableId, SegmentId> writers;
  const auto check = [&](VariableId id, SegmentId user) {
    const auto writer = writers.find(id);
    if (writer != writers.end() && writer->second != user) {
      refuse(program.at(user), "'" + program.at(writer->second).name + "' writes its variable '" +
                                   program.variables[id.value].name + "'");
    }
  };
  for (SegmentId id : program.path) {
    for (const Store& store : program.at(id).stores) {
      const auto* target = std::get_if<StoreVariable>(&store.target);
      if (target == nullptr) continue;
      check(target->variable, id);
      writers[target->variable] = id;
    }
  }
  for (SegmentId id : program.path) {
    for (const Load& load : program.at(id).loads) {
      const auto* source = std::get_if<LoadVariable>(&load.source);
      if (source != nullptr) check(source->variable, id);
    }
  }
}

}  // namespace

void Program::check_path() const {
  if (path.empty()) return;
  std::vector<int64_t> step(segments.size(), -1);
  for (size_t index = 0; index < path.size(); ++index) {
    const int64_t id = path[index].value;
    if (id < 0 || id >= static_cast<int64_t>(segments.size()) || step[id] >= 0) {
      throw Error("The path of micro-batches names segment " + std::to_string(id) + " of " +
                  std::to_string(segments.size()) + ", which must exist and be named once");
    }
    step[id] = static_cast<int64_t>(index);
  }
  for (size_t id = 0; id < segments.size(); ++id) {
    if ((step[id] >= 0) != (segments[id].kind == SegmentKind::kMicroBatch)) {
      throw Error("The path of micro-batches must have each of their segments and no other, but '" +
                  segments[id].name + "' is " + (step[id] < 0 ? "not in it" : "in it"));
    }
    if (step[id] >= 0) check_segment(*this, segments[id]);
  }
  for (const Link& link : links) {
    const int64_t from = step[link.producer.value], to = step[link.consumer.value];
    if ((from >= 0 || to >= 0) && (from < 0 || from >= to || link.is_sharded)) {
      refuse(at(link.consumer), "its values from '" + at(link.producer).name +
                                    "' come later, from outside or in parts");
    }
  }
  check_variables(*this);
}

}  // namespace poptorch_emu
