#include "runtime/memory/packed_variables.h"

#include <algorithm>
#include <string>
#include <variant>

namespace poptorch_emu {
namespace {

// Operators that only bring the elements of their first argument into another order.
bool packs(const Instruction& instruction) {
  return instruction.op.schema().name().rfind("mkldnn::_reorder_", 0) == 0;
}

// One tensor on the chip, the same on all replicas.
bool is_plain(const Variable& variable) {
  return !variable.is_per_replica && !variable.is_sharded && !variable.is_remote &&
         variable.groups.of_replica.empty();
}

}  // namespace

PackedVariables::PackedVariables(const Program& program) : program_(program) {
  for (const Variable& variable : program.variables) {
    readers_.push_back(is_plain(variable) ? Readers::kNone : Readers::kOthers);
  }
  for (const Segment& segment : program.segments) {
    for (const Load& load : segment.loads) note(load, segment);
    for (const Store& store : segment.stores) {
      if (const auto* whole = std::get_if<StoreVariable>(&store.target)) {
        note(whole->variable, Readers::kOthers);
      } else if (const auto* rows = std::get_if<StoreVariableRows>(&store.target)) {
        note(rows->variable, Readers::kOthers);
      }
    }
  }
}

void PackedVariables::note(const Load& load, const Segment& segment) {
  if (const auto* whole = std::get_if<LoadVariable>(&load.source)) {
    const bool is_prepared = segment.kind == SegmentKind::kPreparation && !whole->is_shard;
    note(whole->variable, is_prepared ? Readers::kPreparations : Readers::kOthers);
  } else if (const auto* packed = std::get_if<LoadPackedVariable>(&load.source)) {
    note(packed->variable, Readers::kProducts);
  } else if (const auto* image = std::get_if<LoadImageVariable>(&load.source)) {
    note(image->variable, Readers::kOthers);
  } else if (const auto* rows = std::get_if<LoadVariableRows>(&load.source)) {
    note(rows->variable, Readers::kOthers);
  }
}

void PackedVariables::note(VariableId id, Readers readers) {
  Readers& known = readers_[id.value];
  known = known == Readers::kNone || known == readers ? readers : Readers::kOthers;
}

std::optional<VariableId> PackedVariables::packed_by(const Segment& preparation,
                                                     const Instruction& instruction) const {
  if (!packs(instruction) || instruction.slots.empty() || instruction.outputs.empty()) return {};
  const Slot& packed = instruction.slots.front();
  if (packed.argument != 0 || instruction.outputs.front().value < 0) return {};
  for (const Load& load : preparation.loads) {
    const auto* source = std::get_if<LoadVariable>(&load.source);
    if (source == nullptr || load.target.value != packed.source.value) continue;
    if (readers_[source->variable.value] == Readers::kPreparations) return source->variable;
  }
  return {};
}

}  // namespace poptorch_emu
