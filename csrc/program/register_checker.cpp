#include "program/register_checker.h"

#include <algorithm>

#include "common/errors.h"

namespace poptorch_emu {
namespace {

size_t num_tensors(const Instruction& instruction, int64_t argument) {
  for (const ListSlot& slot : instruction.list_slots) {
    if (slot.argument == argument) return slot.sources.size();
  }
  const c10::IValue& constant = instruction.arguments[argument];
  return constant.isTensorList() ? constant.toTensorList().size() : 0;
}

void check_body(const Body& body, size_t num_given, size_t num_returned) {
  if (body.parameters.size() > num_given || body.results.size() != num_returned) {
    throw Error("Body '" + body.name + "' takes " + std::to_string(body.parameters.size()) +
                " tensors and returns " + std::to_string(body.results.size()) + ", but is given " +
                std::to_string(num_given) + " and is to return " + std::to_string(num_returned));
  }
  RegisterChecker inner(body.num_registers, "body '" + body.name + "'");
  for (RegisterId parameter : body.parameters) {
    if (parameter.value >= 0) inner.write(parameter, "a parameter");
  }
  if (body.iteration.value >= 0) inner.write(body.iteration, "the iteration");
  for (const Instruction& instruction : body.instructions) {
    if (instruction.control == Control::kAddProduct ||
        instruction.control == Control::kUpdateRows) {
      throw Error("'" + instruction.debug.node + "' in body '" + body.name +
                  "' uses a sum of gradients, which only the code of a segment may do");
    }
    inner.check(instruction);
  }
  for (RegisterId result : body.results) inner.read(result, "a result");
}

}  // namespace

bool gives_own_result(const Instruction& instruction, const Slot& slot) {
  const std::vector<RegisterId>& outputs = instruction.outputs;
  const c10::Argument& argument = instruction.op.schema().arguments()[slot.argument];
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return is_written && argument.type()->kind() == c10::TypeKind::OptionalType &&
         std::any_of(outputs.begin(), outputs.end(),
                     [&](RegisterId id) { return id.value == slot.source.value; });
}

RegisterChecker::RegisterChecker(int64_t num_registers, std::string where)
    : where_(std::move(where)), written_(num_registers, false) {}

void RegisterChecker::check(const Instruction& instruction) {
  const std::string& node = instruction.debug.node;
  for (const Slot& slot : instruction.slots) {
    gives_own_result(instruction, slot) ? check_range(slot.source, node) : read(slot.source, node);
  }
  for (const ListSlot& slot : instruction.list_slots) {
    for (RegisterId source : slot.sources) {
      if (source.value >= 0 || !slot.is_optional) read(source, node);
    }
  }
  check_bodies(instruction);
  check_num_outputs(instruction);
  for (RegisterId dead : instruction.dies) {
    read(dead, node);
    written_[dead.value] = false;
  }
  for (RegisterId output : instruction.outputs) {
    if (output.value >= 0) write(output, node);
  }
}

void RegisterChecker::read(RegisterId id, const std::string& user) const {
  check_range(id, user);
  if (!written_[id.value]) {
    throw Error("'" + user + "' in " + where_ + " reads register " + std::to_string(id.value) +
                ", which holds nothing there");
  }
}

void RegisterChecker::write(RegisterId id, const std::string& user) {
  check_range(id, user);
  if (written_[id.value]) {
    throw Error("'" + user + "' in " + where_ + " writes register " + std::to_string(id.value) +
                " again");
  }
  written_[id.value] = true;
}

// Checks the number of results; an operator that returns a list may return any number of tensors.
void RegisterChecker::check_num_outputs(const Instruction& instruction) const {
  const auto& returns = instruction.op.schema().returns();
  const bool is_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  if (!is_list && instruction.outputs.size() > returns.size()) {
    throw Error("'" + instruction.debug.node + "' in " + where_ + " has " +
                std::to_string(instruction.outputs.size()) + " outputs, but its operator returns " +
                std::to_string(returns.size()));
  }
}

void RegisterChecker::check_bodies(const Instruction& instruction) const {
  const std::string& node = instruction.debug.node;
  const size_t expected = instruction.control == Control::kForLoop ? 1
                          : instruction.control == Control::kCond  ? 2
                                                                   : 0;
  if (instruction.bodies.size() != expected) {
    throw Error("'" + node + "' in " + where_ + " has " +
                std::to_string(instruction.bodies.size()) + " bodies instead of " +
                std::to_string(expected));
  }
  for (size_t i = 0; i < expected; ++i) {
    size_t num_given = num_tensors(instruction, static_cast<int64_t>(3 + i));
    size_t num_returned = instruction.outputs.size();
    if (instruction.control == Control::kForLoop) {
      if (instruction.arguments[1].toInt() < 1) {
        throw Error("Loop '" + node + "' in " + where_ + " runs less than once");
      }
      if (num_returned < num_given) {
        throw Error("Loop '" + node + "' in " + where_ + " carries " + std::to_string(num_given) +
                    " tensors, but its body returns " + std::to_string(num_returned));
      }
      num_given += num_tensors(instruction, 4) + num_tensors(instruction, 5);
    }
    check_body(instruction.bodies[i], num_given, num_returned);
  }
}

void RegisterChecker::check_range(RegisterId id, const std::string& user) const {
  if (id.value < 0 || id.value >= static_cast<int64_t>(written_.size())) {
    throw Error("'" + user + "' in " + where_ + " names register " + std::to_string(id.value) +
                " of " + std::to_string(written_.size()));
  }
}

}  // namespace poptorch_emu
