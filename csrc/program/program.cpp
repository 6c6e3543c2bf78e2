#include "program/program.h"

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

}  // namespace

Control control_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "poptorch_emu::for_loop") return Control::kForLoop;
  if (name == "poptorch_emu::cond") return Control::kCond;
  if (name == "poptorch_emu::host_call") return Control::kHostCall;
  if (name == "poptorch_emu::add_product") return Control::kAddProduct;
  if (name == "poptorch_emu::elementwise_rows") return Control::kUpdateRows;
  if (name == "poptorch_emu::own_piece") return Control::kOwnPiece;
  if (name == "poptorch_emu::all_gather" || name == "poptorch_emu::all_reduce" ||
      name == "poptorch_emu::all_to_all") {
    return Control::kCollective;
  }
  return Control::kOperator;
}

Collective collective_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "poptorch_emu::all_gather") return Collective::kAllGather;
  return name == "poptorch_emu::all_reduce" ? Collective::kAllReduce : Collective::kAllToAll;
}

AccumulatorId sum_of(const Instruction& instruction) {
  return {instruction.arguments.back().toInt()};
}

bool Segment::has_host_calls() const { return calls_host(instructions); }

std::vector<const Instruction*> Segment::collectives() const {
  std::vector<const Instruction*> found;
  for (const Instruction& instruction : instructions) {
    if (instruction.control == Control::kCollective) found.push_back(&instruction);
  }
  return found;
}

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

bool Program::is_collective(const Segment& segment) const {
  return has_store<Accumulate>(segment, [this](const Accumulate& target) {
    return accumulators.at(target.accumulator.value).is_sharded;
  });
}

bool Program::adds_in_any_order(AccumulatorId id) const {
  const Accumulator& accumulator = accumulators[id.value];
  return accumulator.dtype == at::kFloat && !accumulator.is_sharded && !accumulator.is_remote &&
         !numerics.checks_floating_point;
}

}  // namespace poptorch_emu
