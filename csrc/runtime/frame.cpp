#include "runtime/frame.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "common/errors.h"
#include "runtime/floating_point.h"

namespace poptorch_emu {

void Frame::run(int64_t micro_batch, int64_t replica) {
  for (const Instruction& instruction : segment_.instructions) {
    try {
      execute(instruction);
    } catch (const c10::Error& error) {
      fail(instruction, error.what_without_backtrace(), micro_batch, replica);
    } catch (const std::exception& error) {
      fail(instruction, error.what(), micro_batch, replica);
    }
  }
}

void Frame::execute(const Instruction& instruction) {
  stack_.assign(instruction.arguments.begin(), instruction.arguments.end());
  for (const Slot& slot : instruction.slots) {
    stack_[slot.argument] = c10::IValue(registers_[slot.source.value]);
  }
  for (const ListSlot& slot : instruction.list_slots) {
    if (slot.is_optional) {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(slot.sources.size());
      for (RegisterId source : slot.sources) {
        list.push_back(source.value < 0 ? std::optional<at::Tensor>()
                                        : std::optional<at::Tensor>(registers_[source.value]));
      }
      stack_[slot.argument] = std::move(list);
    } else {
      c10::List<at::Tensor> list;
      list.reserve(slot.sources.size());
      for (RegisterId source : slot.sources) list.push_back(registers_[source.value]);
      stack_[slot.argument] = std::move(list);
    }
  }
  instruction.op.callBoxed(stack_);
  if (checks_floating_point_) check_floating_point(instruction, registers_, stack_);
  for (RegisterId dead : instruction.dies) registers_[dead.value].reset();
  take_results(instruction);
  stack_.clear();
}

void Frame::take_results(const Instruction& instruction) {
  const std::vector<RegisterId>& outputs = instruction.outputs;
  if (stack_.size() == 1 && stack_[0].isTensorList()) {
    c10::List<at::Tensor> list = std::move(stack_[0]).toTensorList();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].value >= 0) registers_[outputs[i].value] = list.extract(i);
    }
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].value >= 0) registers_[outputs[i].value] = std::move(stack_[i]).toTensor();
  }
}

void Frame::clear() {
  for (at::Tensor& tensor : registers_) tensor.reset();
}

void Frame::fail(const Instruction& instruction, const std::string& cause, int64_t micro_batch,
                 int64_t replica) {
  std::ostringstream out;
  out << "Exception while executing node '" << instruction.debug.node
      << "': " << instruction.op.schema().operator_name() << "(";
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    c10::IValue value = instruction.arguments[i];
    for (const Slot& slot : instruction.slots) {
      if (slot.argument == static_cast<int64_t>(i)) value = registers_[slot.source.value];
    }
    out << (i ? ", " : "");
    const auto list = std::find_if(
        instruction.list_slots.begin(), instruction.list_slots.end(),
        [i](const ListSlot& slot) { return slot.argument == static_cast<int64_t>(i); });
    if (list == instruction.list_slots.end()) {
      out << describe(value);
      continue;
    }
    out << "[";
    for (size_t item = 0; item < list->sources.size(); ++item) {
      const RegisterId source = list->sources[item];
      out << (item ? ", " : "")
          << describe(source.value < 0 ? c10::IValue() : registers_[source.value]);
    }
    out << "]";
  }
  out << ") in block '" << instruction.debug.block << "', stage " << instruction.debug.stage
      << ", segment '" << segment_.name << "', micro-batch " << micro_batch << ", replica "
      << replica;
  if (!instruction.debug.module.empty()) out << ", module '" << instruction.debug.module << "'";
  if (!instruction.debug.source.empty()) out << ", at " << instruction.debug.source;
  out << ": " << cause;
  throw Error(out.str(), "poptorch_cpp_error");
}

}  // namespace poptorch_emu
