// Readable text for programs and values.

#include <sstream>
#include <string_view>

#include "common/product_kernel.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

// Returns PyTorch's Python name of a type.
std::string_view dtype_name(at::ScalarType dtype) { return c10::getDtypeNames(dtype).first; }

std::string text_of(RegisterId id) { return id.value < 0 ? "-" : "%" + std::to_string(id.value); }

// Returns registers as text, for example " %0 %1"; "-" stands for an empty or unused register.
std::string text_of(const std::vector<RegisterId>& ids) {
  std::string text;
  for (RegisterId id : ids) text += " " + text_of(id);
  return text;
}

// Writes for example "aten::mul.Tensor( %0 [ %1 - ] )": the arguments that are registers, in order,
// and the kernel's name if the operator is a product.
void write_call(std::ostream& out, const Instruction& instruction) {
  const c10::FunctionSchema& schema = instruction.op.schema();
  out << schema.operator_name() << "(";
  for (int64_t i = 0; i < static_cast<int64_t>(instruction.arguments.size()); ++i) {
    for (const Slot& slot : instruction.slots) {
      if (slot.argument == i) out << " " << text_of(slot.source);
    }
    for (const ListSlot& slot : instruction.list_slots) {
      if (slot.argument == i) out << " [" << text_of(slot.sources) << " ]";
    }
    if (schema.arguments()[i].name() == "kernel") {
      out << " " << name_of(static_cast<ProductKernel>(instruction.arguments[i].toInt()));
    }
  }
  out << " )";
}

void write_instruction(std::ostream& out, const Instruction& instruction, const std::string& indent,
                       const Program& program) {
  out << indent;
  for (RegisterId output : instruction.outputs) out << text_of(output) << " ";
  if (instruction.control == Control::kAddProduct) {
    out << "accumulator " << program.accumulators.at(sum_of(instruction).value).name << " +";
  }
  out << "= ";
  write_call(out, instruction);
  if (instruction.control == Control::kUpdateRows) {
    out << " on touched rows of accumulator "
        << program.accumulators.at(sum_of(instruction).value).name;
  }
  out << "  # " << instruction.debug.node << " " << instruction.debug.source << "\n";
  for (const Body& body : instruction.bodies) {
    out << indent << "  " << body.name << ": " << body.num_registers << " registers, takes"
        << text_of(body.parameters) << "\n";
    for (const Instruction& inner : body.instructions) {
      write_instruction(out, inner, indent + "    ", program);
    }
    out << indent << "    returns" << text_of(body.results) << "\n";
  }
}

// Returns the names of the tables' entries that loads and stores refer to.
class Namer {
 public:
  explicit Namer(const Program& program) : program_(program) {}

  std::string operator()(const LoadInput& load) const {
    return "input " + program_.inputs.at(load.input.value).name;
  }
  std::string operator()(const LoadConstant& load) const {
    return "constant " + describe(program_.constants.at(load.constant.value));
  }
  std::string operator()(const LoadScalar& load) const {
    return "scalar " + program_.scalars.at(load.scalar.value).name;
  }
  std::string operator()(const LoadRng& load) const {
    return "random state" + (program_.joined == 1 ? "" : " of piece " + std::to_string(load.piece));
  }
  std::string operator()(const LoadVariable& load) const {
    return variable(load.variable, load.is_shard);
  }
  std::string operator()(const LoadAccumulator& load) const {
    return accumulator(load.accumulator, load.is_shard);
  }
  std::string operator()(const LoadVariableRows& load) const {
    return "touched rows of " + variable(load.variable, false);
  }
  std::string operator()(const LoadAccumulatorRows& load) const {
    return "touched rows of " + accumulator(load.accumulator, false);
  }
  std::string operator()(const LoadPrepared& load) const {
    return text_of(load.source) + " of " + program_.at(load.preparation).name;
  }
  std::string operator()(const StoreOutput& store) const {
    const std::string output = "output " + std::to_string(store.output.value);
    if (program_.joined == 1) return output;
    return output + ", " + std::to_string(store.num_pieces) + " pieces from " +
           std::to_string(store.piece);
  }
  std::string operator()(const StoreVariable& store) const {
    return variable(store.variable, store.is_shard);
  }
  std::string operator()(const Accumulate& store) const {
    return accumulator(store.accumulator, false);
  }
  std::string operator()(const AccumulateRows& store) const {
    return "rows " + text_of(store.indices) + " of " + accumulator(store.accumulator, false);
  }
  std::string operator()(const StoreVariableRows& store) const {
    return "touched rows of " + variable(store.variable, false);
  }

 private:
  std::string variable(VariableId id, bool is_shard) const {
    return (is_shard ? "part of variable " : "variable ") + program_.variables.at(id.value).name;
  }
  std::string accumulator(AccumulatorId id, bool is_shard) const {
    return (is_shard ? "part of accumulator " : "accumulator ") +
           program_.accumulators.at(id.value).name;
  }

  const Program& program_;
};

void write_segment(std::ostream& out, const Segment& segment, const Program& program) {
  const Namer name(program);
  out << segment.name << " on IPU " << segment.ipu << ": " << segment.num_registers
      << " registers, " << segment.loads.size() << " loads, " << segment.stores.size() << " stores";
  if (segment.kind == SegmentKind::kWindow) {
    out << ", once in a window by replicas " << describe(segment.runners);
  } else if (segment.kind == SegmentKind::kMicroBatch && program.joined > 1) {
    out << ", " << program.joined << " micro-batches at once";
  } else if (segment.kind == SegmentKind::kPreparation) {
    out << (segment.lifetime == Lifetime::kCall ? ", before a call when what it loads was written"
                                                : ", again when its variable has changed");
  }
  if (segment.is_seen_outside) out << ", seen outside";
  out << "\n";
  const auto write_names = [&](const char* what, const auto& ids, const auto& table) {
    for (auto id : ids) out << "  " << what << " " << table[id.value].name << "\n";
  };
  write_names("exchange", segment.exchanges, program.accumulators);
  write_names("exchange parts of", segment.scatters, program.accumulators);
  write_names("gather accumulator", segment.gathered_sums, program.accumulators);
  write_names("gather", segment.gathers, program.variables);
  if (segment.relays()) {
    out << "  carries out collective " << segment.relayed.index << " of "
        << program.at(segment.relayed.segment).name << "\n";
  }
  for (AccumulatorId id : segment.reductions) {
    out << "  adds up " << name(LoadAccumulator{id}) << " over replicas\n";
  }
  for (const Load& load : segment.loads) {
    out << "  " << text_of(load.target) << " = " << std::visit(name, load.source) << "\n";
  }
  for (const Instruction& instruction : segment.instructions) {
    write_instruction(out, instruction, "  ", program);
  }
  for (const Store& store : segment.stores) {
    out << "  " << text_of(store.source) << " -> " << std::visit(name, store.target) << "\n";
  }
}

// Writes the groups, the sharding and the memory of a variable or accumulator.
template <typename Entry>
void write_place(std::ostream& out, const Entry& entry) {
  if (!entry.groups.of_replica.empty()) out << ", groups " << describe(entry.groups.of_replica);
  if (entry.is_sharded) out << ", in parts";
  if (entry.is_remote) out << ", in streaming memory";
  out << "\n";
}

}  // namespace

std::string Program::text() const {
  std::ostringstream out;
  for (const Variable& variable : variables) {
    out << "variable " << variable.name << ": " << dtype_name(variable.dtype)
        << describe(variable.shape) << (variable.is_per_replica ? ", of each replica" : "");
    write_place(out, variable);
  }
  for (const Accumulator& accumulator : accumulators) {
    out << "accumulator " << accumulator.name << ": " << dtype_name(accumulator.dtype)
        << (accumulator.is_running_mean ? ", running mean" : "");
    write_place(out, accumulator);
  }
  for (const Segment& segment : segments) write_segment(out, segment, *this);
  for (const Link& link : links) {
    out << "link " << at(link.producer).name << " -> " << at(link.consumer).name << ": "
        << link.producer_registers.size() << " tensors, depth " << link.capacity
        << (link.is_sharded ? ", in parts" : "") << (link.is_remote ? ", in streaming memory" : "")
        << "," << text_of(link.producer_registers) << " ->" << text_of(link.consumer_registers)
        << "\n";
  }
  constexpr const char* kTurns[] = {"one by one", "in turn", "in any order"};
  for (SegmentId id : path) {
    out << "path " << at(id).name << ", " << kTurns[static_cast<int>(at(id).turns)] << "\n";
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
