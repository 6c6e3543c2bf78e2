#include "runtime/executor/floating_point.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include <cmath>
#include <set>

namespace poptorch_emu {
namespace {

// Comparisons, for which a NaN argument is an invalid operation.
const std::set<std::string> kComparisons = {"aten::eq", "aten::ne", "aten::lt",
                                            "aten::le", "aten::gt", "aten::ge"};

struct Content {
  bool has_tensor = false;
  bool has_nan = false;
  bool has_infinity = false;

  void add(const at::Tensor& tensor) {
    has_tensor = true;
    if (is_finite(tensor)) return;
    const bool is_any_nan = at::isnan(tensor).any().item<bool>();
    has_nan |= is_any_nan;
    has_infinity |= !is_any_nan || tensor.isinf().any().item<bool>();
  }

  void add(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) {
      add(value.toTensor());
    } else if (value.isDouble()) {
      has_nan |= std::isnan(value.toDouble());
      has_infinity |= std::isinf(value.toDouble());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    }
  }
};

Content arguments_of(const Instruction& instruction, const std::vector<at::Tensor>& registers) {
  Content content;
  for (const c10::IValue& value : instruction.arguments) content.add(value);
  for (const Slot& slot : instruction.slots) content.add(registers[slot.source.value]);
  for (const ListSlot& list : instruction.list_slots) {
    for (RegisterId source : list.sources) {
      if (source.value >= 0) content.add(registers[source.value]);
    }
  }
  return content;
}

// Returns whether an operator returns uninitialised memory.
bool is_uninitialised(const std::string& name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

Content results_of(const Instruction& instruction, const std::vector<c10::IValue>& results) {
  Content content;
  const bool is_list = results.size() == 1 && results[0].isTensorList();
  for (size_t i = 0; i < results.size(); ++i) {
    const bool is_used =
        is_list || (i < instruction.outputs.size() && instruction.outputs[i].value >= 0);
    if (is_used) content.add(results[i]);
  }
  return content;
}

}  // namespace

FloatingPointException::FloatingPointException(const std::string& what)
    : std::domain_error("floating-point exception: " + what +
                        "; see troubleshooting: floating-point-exception") {}

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return true;
  return at::isfinite(tensor).all().item<bool>();
}

void check_floating_point(const Instruction& instruction, const std::vector<at::Tensor>& registers,
                          const std::vector<c10::IValue>& results) {
  const std::string& name = instruction.op.schema().name();
  const bool is_comparison = kComparisons.contains(name);
  const Content made = results_of(instruction, results);
  if ((!is_comparison && !made.has_nan && !made.has_infinity) || is_uninitialised(name)) return;
  const Content given = arguments_of(instruction, registers);
  if (!given.has_tensor) return;
  if (is_comparison && given.has_nan) {
    throw FloatingPointException("a comparison with NaN");
  }
  if (made.has_nan && !given.has_nan) {
    throw FloatingPointException("an invalid operation made NaN");
  }
  if (made.has_infinity && !given.has_infinity && !given.has_nan) {
    throw FloatingPointException("an overflow or a division by zero made an infinity");
  }
}

}  // namespace poptorch_emu
