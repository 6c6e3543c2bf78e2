#include "runtime/gradients/lazy_row_sums.h"

#include <algorithm>
#include <variant>

namespace poptorch_emu {
namespace {

bool takes_summands(const Instruction& instruction) {
  return instruction.op.schema().name() == "poptorch_emu::elementwise_rows";
}

bool reads(const Instruction& instruction, RegisterId id) {
  const auto is_it = [id](RegisterId source) { return source.value == id.value; };
  return std::any_of(instruction.slots.begin(), instruction.slots.end(),
                     [&](const Slot& slot) { return is_it(slot.source); }) ||
         std::any_of(instruction.list_slots.begin(), instruction.list_slots.end(),
                     [&](const ListSlot& slot) {
                       return std::any_of(slot.sources.begin(), slot.sources.end(), is_it);
                     });
}

// Whether nothing reads a register but instructions that take the summands behind it.
bool is_read_lazily(const Program& program, const Segment& segment, RegisterId id) {
  const auto is_it = [id](RegisterId source) { return source.value == id.value; };
  return std::all_of(segment.instructions.begin(), segment.instructions.end(),
                     [id](const Instruction& instruction) {
                       return takes_summands(instruction) || !reads(instruction, id);
                     }) &&
         std::none_of(segment.stores.begin(), segment.stores.end(),
                      [&](const Store& store) { return is_it(store.source); }) &&
         std::none_of(segment.outgoing.begin(), segment.outgoing.end(), [&](LinkId link) {
           const std::vector<RegisterId>& sent = program.links[link.value].producer_registers;
           return std::any_of(sent.begin(), sent.end(), is_it);
         });
}

}  // namespace

// Where floating-point numbers are checked, those of all arguments are looked at.
std::vector<bool> lazy_row_sums(const Program& program) {
  std::vector<bool> are_lazy(program.accumulators.size(), !program.numerics.checks_floating_point);
  for (const Segment& segment : program.segments) {
    for (const Load& load : segment.loads) {
      const auto* sums = std::get_if<LoadAccumulatorRows>(&load.source);
      const auto* numbers = std::get_if<LoadRowNumbers>(&load.source);
      if (sums == nullptr && numbers == nullptr) continue;
      const AccumulatorId id = sums != nullptr ? sums->accumulator : numbers->accumulator;
      if (!is_read_lazily(program, segment, load.target)) are_lazy[id.value] = false;
    }
  }
  return are_lazy;
}

}  // namespace poptorch_emu
