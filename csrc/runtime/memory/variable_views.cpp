#include "runtime/memory/variable_views.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <variant>

namespace poptorch_emu {
namespace {

using Variables = std::set<VariableId>;

// They may return an argument, or a view of it, and do not say so.
constexpr std::array<std::string_view, 2> kSilentViews = {
    "aten::_unsafe_view",
    "poptorch_emu::print_tensor",
};

// Code of the user's does not say either.
bool may_return_views(const Instruction& instruction) {
  if (instruction.control != Control::kOperator) return true;
  const c10::FunctionSchema& schema = instruction.op.schema();
  const std::string_view name = schema.name();
  const bool is_known = name.starts_with("aten::") || name.starts_with("mkldnn::") ||
                        name.starts_with("poptorch_emu::");
  return !is_known ||
         std::find(kSilentViews.begin(), kSilentViews.end(), name) != kSilentViews.end() ||
         std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// What each register of a segment may be a view of.
class Registers {
 public:
  explicit Registers(const Segment& segment) : segment_(segment), behind_(segment.num_registers) {
    for (const Load& load : segment.loads) {
      if (const auto* source = std::get_if<LoadVariable>(&load.source)) {
        behind_[load.target.value].insert(source->variable);
      } else if (const auto* image = std::get_if<LoadImageVariable>(&load.source)) {
        behind_[load.target.value].insert(image->variable);
      }
    }
  }

  const Variables& operator[](RegisterId id) const { return behind_[id.value]; }

  // Returns whether something is new.
  bool add(RegisterId id, const Variables& variables) {
    const size_t before = behind_[id.value].size();
    behind_[id.value].insert(variables.begin(), variables.end());
    return behind_[id.value].size() > before;
  }

  // Adds what the code makes of what is there.
  void follow_code() {
    for (const Instruction& instruction : segment_.instructions) {
      if (!may_return_views(instruction)) continue;
      Variables read;
      const auto note = [&](RegisterId id) {
        if (id.value >= 0) read.insert(behind_[id.value].begin(), behind_[id.value].end());
      };
      for (const Slot& slot : instruction.slots) note(slot.source);
      for (const ListSlot& slot : instruction.list_slots) {
        std::for_each(slot.sources.begin(), slot.sources.end(), note);
      }
      for (RegisterId output : instruction.outputs) {
        if (output.value >= 0) add(output, read);
      }
    }
  }

  Variables all() const {
    Variables all;
    for (const Variables& each : behind_) all.insert(each.begin(), each.end());
    return all;
  }

 private:
  const Segment& segment_;
  std::vector<Variables> behind_;
};

}  // namespace

std::vector<Variables> variables_in_reach(const Program& program) {
  std::vector<Registers> registers;
  for (const Segment& segment : program.segments) {
    registers.emplace_back(segment).follow_code();
  }
  bool is_new = true;
  while (is_new) {
    is_new = false;
    for (const Link& link : program.links) {
      // What goes to streaming memory, or in parts, is copied.
      if (link.is_remote || link.is_sharded) continue;
      Registers& consumer = registers[link.consumer.value];
      bool is_new_here = false;
      for (size_t i = 0; i < link.producer_registers.size(); ++i) {
        const Variables& brought = registers[link.producer.value][link.producer_registers[i]];
        is_new_here |= consumer.add(link.consumer_registers[i], brought);
      }
      if (is_new_here) consumer.follow_code();
      is_new |= is_new_here;
    }
  }
  std::vector<Variables> of_segment;
  for (const Registers& each : registers) of_segment.push_back(each.all());
  return of_segment;
}

}  // namespace poptorch_emu
