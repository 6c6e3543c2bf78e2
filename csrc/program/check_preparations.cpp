// Checks preparations, and the segments that read their values.

#include <algorithm>
#include <map>
#include <string>
#include <variant>

#include "common/errors.h"
#include "program/program.h"
#include "program/register_checker.h"

namespace poptorch_emu {
namespace {

bool stores(const Segment& segment, VariableId id) {
  const auto is_it = [id](const auto& target) { return target.variable == id; };
  return has_store<StoreVariable>(segment, is_it) || has_store<StoreVariableRows>(segment, is_it);
}

// Checks one preparation. Afterwards `registers` records which registers hold a value at its end.
class PreparationChecker {
 public:
  PreparationChecker(const Program& program, const Segment& segment)
      : registers(segment.num_registers, "preparation '" + segment.name + "'"),
        program_(program),
        segment_(segment),
        where_("Preparation '" + segment.name + "'") {}

  void run() {
    if (!segment_.stores.empty() || !segment_.incoming.empty() || !segment_.outgoing.empty()) {
      throw Error(where_ + " has stores or links, but only its registers are read");
    }
    if (segment_.has_host_calls()) {
      throw Error(where_ + " calls a function of the host, which only segments of a call may do");
    }
    int64_t num_variables = 0;
    for (const Load& load : segment_.loads) {
      registers.write(load.target, "a load");
      const auto* source = std::get_if<LoadVariable>(&load.source);
      if (source != nullptr && !source->is_shard) {
        check_variable(source->variable);
        ++num_variables;
      } else if (!std::holds_alternative<LoadConstant>(load.source) &&
                 !std::holds_alternative<LoadScalar>(load.source)) {
        throw Error(where_ + " loads something else than whole variables, constants and scalars");
      }
    }
    if (segment_.lifetime == Lifetime::kWindow && num_variables != 1) {
      throw Error(where_ + ", which is made again when its variable has changed, loads " +
                  std::to_string(num_variables) + " variables instead of 1");
    }
    for (const Instruction& instruction : segment_.instructions) {
      registers.check(instruction);
      if (segment_.lifetime == Lifetime::kWindow) check_memory(instruction);
    }
  }

  RegisterChecker registers;

 private:
  void check_variable(VariableId id) const {
    const Variable& variable = program_.variables[id.value];
    const bool is_for_calls = segment_.lifetime == Lifetime::kCall;
    if (variable.is_remote || variable.is_sharded) {
      throw Error(where_ + " reads '" + variable.name +
                  "', which must be whole and not in streaming memory");
    }
    if (is_for_calls && (variable.is_per_replica || !variable.groups.of_replica.empty())) {
      throw Error(where_ + " reads '" + variable.name +
                  "', which must be the same on all replicas");
    }
    for (const Segment& segment : program_.segments) {
      if ((is_for_calls || segment.kind == SegmentKind::kMicroBatch) && stores(segment, id)) {
        throw Error(where_ + " reads '" + variable.name + "', which segment '" + segment.name +
                    "' stores" + (is_for_calls ? " during a call" : " in each micro-batch"));
      }
    }
  }

  // Checks that a result reuses its memory, because later windows compute the values again.
  void check_memory(const Instruction& instruction) const {
    const bool is_written_again =
        instruction.outputs.size() == 1 &&
        std::any_of(instruction.slots.begin(), instruction.slots.end(),
                    [&](const Slot& slot) { return gives_own_result(instruction, slot); });
    if (!is_written_again) {
      throw Error(where_ + " is made again when its variable has changed, but '" +
                  instruction.debug.node + "' cannot write its result in the memory of the last");
    }
  }

  const Program& program_;
  const Segment& segment_;
  const std::string where_;
};

}  // namespace

void Program::check_preparations() const {
  std::map<int64_t, PreparationChecker> preparations;  // indexed by segment
  for (size_t id = 0; id < segments.size(); ++id) {
    if (segments[id].kind != SegmentKind::kPreparation) continue;
    const auto key = static_cast<int64_t>(id);
    preparations.try_emplace(key, *this, segments[id]).first->second.run();
  }
  for (const Segment& reader : segments) {
    for (const Load& load : reader.loads) {
      const auto* source = std::get_if<LoadPrepared>(&load.source);
      if (source == nullptr) continue;
      const std::string where = "A load of segment '" + reader.name + "'";
      const Segment& preparation = at(source->preparation);
      const auto found = preparations.find(source->preparation.value);
      if (found == preparations.end()) {
        throw Error(where + " reads a register of '" + preparation.name +
                    "', which only a preparation keeps");
      }
      found->second.registers.read(source->source, "a load of segment '" + reader.name + "'");
      if (preparation.lifetime == Lifetime::kWindow && reader.kind != SegmentKind::kMicroBatch) {
        throw Error(where + " reads a register of '" + preparation.name +
                    "', which only segments of micro-batches may do: an update changes it");
      }
    }
  }
}

}  // namespace poptorch_emu
