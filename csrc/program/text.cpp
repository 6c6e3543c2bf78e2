// Programs and values as people read them.

#include <map>
#include <sstream>

#include "program/program.h"

namespace poptorch_emu {
namespace {

// PyTorch's Python name of a type.
std::string dtype_name(at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> kNames = {
      {at::kFloat, "float32"},  {at::kHalf, "float16"}, {at::kBFloat16, "bfloat16"},
      {at::kDouble, "float64"}, {at::kLong, "int64"},   {at::kInt, "int32"},
      {at::kShort, "int16"},    {at::kChar, "int8"},    {at::kByte, "uint8"},
      {at::kBool, "bool"}};
  const auto found = kNames.find(dtype);
  return found == kNames.end() ? toString(dtype) : found->second;
}

void write_text(std::ostream& out, const Instruction& instruction, const std::string& indent) {
  out << indent;
  for (RegisterId output : instruction.outputs) out << "%" << output.value << " ";
  out << "= " << instruction.op.schema().operator_name() << "(";
  for (const Slot& slot : instruction.slots) out << " %" << slot.source.value;
  out << " )  # " << instruction.debug.node << " " << instruction.debug.source << "\n";
  for (const Body& body : instruction.bodies) {
    out << indent << "  " << body.name << ": " << body.num_registers << " registers\n";
    for (const Instruction& inner : body.instructions) write_text(out, inner, indent + "    ");
  }
}

}  // namespace

std::string Program::text() const {
  std::ostringstream out;
  for (const Segment& segment : segments) {
    out << segment.name << " on IPU " << segment.ipu << ": " << segment.num_registers
        << " registers, " << segment.loads.size() << " loads, " << segment.stores.size()
        << " stores\n";
    for (const Instruction& instruction : segment.instructions) {
      write_text(out, instruction, "  ");
    }
  }
  for (const Link& link : links) {
    out << "link " << at(link.producer).name << " -> " << at(link.consumer).name << ": "
        << link.producer_registers.size() << " tensors, depth " << link.capacity << "\n";
  }
  return out.str();
}

std::string describe(const c10::IValue& value) {
  std::ostringstream out;
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return "None";
    out << dtype_name(tensor.scalar_type()) << "[";
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) out << (dim ? ", " : "") << tensor.size(dim);
    out << "]";
  } else if (value.isTensorList() || value.isList()) {
    out << "[";
    bool is_first = true;
    for (const c10::IValue& item : value.toListRef()) {
      out << (is_first ? "" : ", ") << describe(item);
      is_first = false;
    }
    out << "]";
  } else {
    out << value;
  }
  return out.str();
}

}  // namespace poptorch_emu
