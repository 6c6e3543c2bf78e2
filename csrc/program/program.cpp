#include "program/program.h"

#include <algorithm>
#include <set>

namespace poptorch_emu {
namespace {

bool calls_host(const std::vector<Instruction>& instructions) {
  return std::any_of(instructions.begin(), instructions.end(), [](const Instruction& instruction) {
    return instruction.control == Control::kHostCall ||
           std::any_of(instruction.bodies.begin(), instruction.bodies.end(),
                       [](const Body& body) { return calls_host(body.instructions); });
  });
}

// Whether the order of calls may matter beyond their values: the user's own operators, printing.
bool is_seen_outside(const Instruction& instruction) {
  const std::string& name = instruction.op.schema().name();
  const auto is_of = [&name](const char* place) { return name.rfind(place, 0) == 0; };
  const bool is_known = is_of("aten::") || is_of("mkldnn::") || is_of("poptorch_emu::");
  if (!is_known || name == "poptorch_emu::print_tensor") return true;
  if (instruction.control == Control::kHostCall) return true;
  return std::any_of(instruction.bodies.begin(), instruction.bodies.end(), [](const Body& body) {
    return std::any_of(body.instructions.begin(), body.instructions.end(), is_seen_outside);
  });
}

}  // namespace

Control control_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "poptorch_emu::for_loop") return Control::kForLoop;
  if (name == "poptorch_emu::cond") return Control::kCond;
  if (name == "poptorch_emu::host_call") return Control::kHostCall;
  if (name == "poptorch_emu::add_product") return Control::kAddProduct;
  if (name == "poptorch_emu::elementwise_rows") return Control::kUpdateRows;
  return Control::kOperator;
}

AccumulatorId sum_of(const Instruction& instruction) {
  return {instruction.arguments.back().toInt()};
}

Segment& Program::at(SegmentId id) { return segments.at(id.value); }
const Segment& Program::at(SegmentId id) const { return segments.at(id.value); }

void Program::find_last_uses() {
  for (Segment& segment : segments) {
    std::set<int64_t> read_later;
    for (LinkId id : segment.outgoing) {
      for (RegisterId source : links[id.value].producer_registers) read_later.insert(source.value);
    }
    for (auto store = segment.stores.rbegin(); store != segment.stores.rend(); ++store) {
      store->is_last_use = read_later.insert(store->source.value).second;
      const auto* rows = std::get_if<AccumulateRows>(&store->target);
      if (rows != nullptr) read_later.insert(rows->indices.value);
    }
  }
}

void Program::find_collectives() {
  for (Segment& segment : segments) {
    for (const Store& store : segment.stores) {
      const auto* target = std::get_if<Accumulate>(&store.target);
      if (target != nullptr && accumulators.at(target->accumulator.value).is_sharded) {
        segment.is_collective = true;
      }
    }
  }
}

void Program::find_overlaps() {
  for (Segment& segment : segments) {
    const bool writes_variable = std::any_of(
        segment.stores.begin(), segment.stores.end(),
        [](const Store& store) { return std::holds_alternative<StoreVariable>(store.target); });
    segment.is_seen_outside =
        std::any_of(segment.instructions.begin(), segment.instructions.end(), is_seen_outside);
    segment.may_overlap = segment.kind == SegmentKind::kMicroBatch && !segment.is_collective &&
                          !writes_variable && !segment.is_seen_outside;
  }
}

bool Program::has_host_calls() const {
  return std::any_of(segments.begin(), segments.end(),
                     [](const Segment& segment) { return calls_host(segment.instructions); });
}

}  // namespace poptorch_emu
