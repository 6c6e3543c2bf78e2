#include "program/program.h"

#include <map>
#include <set>
#include <sstream>

#include "common/errors.h"

namespace poptorch_emu {
namespace {

template <typename Table, typename Tag>
void check_id(const Table& table, Id<Tag> id, const std::string& where, const char* what) {
  if (id.value < 0 || id.value >= static_cast<int64_t>(table.size())) {
    throw Error(where + " names " + what + " " + std::to_string(id.value) + ", but there are " +
                std::to_string(table.size()));
  }
}

// Follows the registers of one segment: each is written before it is read, and once.
class RegisterChecker {
 public:
  RegisterChecker(const Program& program, const Segment& segment)
      : program_(program), segment_(segment), written_(segment.num_registers, false) {}

  void run() {
    for (const Load& load : segment_.loads) {
      check_source(load.source);
      write(load.target, "a load");
    }
    for (LinkId id : segment_.incoming) {
      for (RegisterId target : program_.links[id.value].consumer_registers) write(target, "a link");
    }
    for (const Instruction& instruction : segment_.instructions) check(instruction);
    for (const Store& store : segment_.stores) {
      check_target(store.target);
      read(store.source, "a store");
    }
    for (LinkId id : segment_.outgoing) {
      for (RegisterId source : program_.links[id.value].producer_registers) read(source, "a link");
    }
  }

 private:
  void check(const Instruction& instruction) {
    const std::string& node = instruction.debug.node;
    for (const Slot& slot : instruction.slots) read(slot.source, node);
    for (const ListSlot& slot : instruction.list_slots) {
      for (RegisterId source : slot.sources) {
        if (source.value >= 0 || !slot.is_optional) read(source, node);
      }
    }
    for (RegisterId dead : instruction.dies) {
      read(dead, node);
      written_[dead.value] = false;
    }
    for (RegisterId output : instruction.outputs) {
      if (output.value >= 0) write(output, node);
    }
  }

  void check_source(const LoadSource& source) const {
    const std::string where = "A load of segment '" + segment_.name + "'";
    if (const auto* load = std::get_if<LoadInput>(&source)) {
      check_id(program_.inputs, load->input, where, "input");
    } else if (const auto* load = std::get_if<LoadVariable>(&source)) {
      check_id(program_.variables, load->variable, where, "variable");
    } else if (const auto* load = std::get_if<LoadConstant>(&source)) {
      check_id(program_.constants, load->constant, where, "constant");
    } else if (const auto* load = std::get_if<LoadScalar>(&source)) {
      check_id(program_.scalars, load->scalar, where, "scalar");
    } else if (const auto* load = std::get_if<LoadAccumulator>(&source)) {
      check_id(program_.accumulators, load->accumulator, where, "accumulator");
      if (segment_.kind != SegmentKind::kWindow) {
        throw Error(where + " reads an accumulator, which only a window segment may do");
      }
    }
  }

  void check_target(const StoreTarget& target) const {
    const std::string where = "A store of segment '" + segment_.name + "'";
    if (const auto* store = std::get_if<StoreOutput>(&target)) {
      check_id(program_.outputs, store->output, where, "output");
    } else if (const auto* store = std::get_if<StoreVariable>(&target)) {
      check_id(program_.variables, store->variable, where, "variable");
      if (segment_.kind == SegmentKind::kWindow &&
          program_.variables[store->variable.value].is_per_replica) {
        throw Error(where + " assigns a variable that each replica has its own of");
      }
    } else if (const auto* store = std::get_if<Accumulate>(&target)) {
      check_id(program_.accumulators, store->accumulator, where, "accumulator");
    }
  }

  void check_range(RegisterId id, const std::string& who) const {
    if (id.value < 0 || id.value >= segment_.num_registers) {
      throw Error("'" + who + "' in segment '" + segment_.name + "' names register " +
                  std::to_string(id.value) + " of " + std::to_string(segment_.num_registers));
    }
  }

  void read(RegisterId id, const std::string& who) const {
    check_range(id, who);
    if (!written_[id.value]) {
      throw Error("'" + who + "' in segment '" + segment_.name + "' reads register " +
                  std::to_string(id.value) + ", which holds nothing there");
    }
  }

  void write(RegisterId id, const std::string& who) {
    check_range(id, who);
    if (written_[id.value]) {
      throw Error("'" + who + "' in segment '" + segment_.name + "' writes register " +
                  std::to_string(id.value) + " again");
    }
    written_[id.value] = true;
  }

  const Program& program_;
  const Segment& segment_;
  std::vector<bool> written_;
};

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

void check_links(const Program& program) {
  std::set<std::pair<SegmentId, SegmentId>> seen;
  for (const Link& link : program.links) {
    const std::string where = "A link";
    check_id(program.segments, link.producer, where, "segment");
    check_id(program.segments, link.consumer, where, "segment");
    if (link.producer_registers.size() != link.consumer_registers.size() || link.capacity < 1) {
      throw Error("The link from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name +
                  "' needs as many registers at both ends and room for at least one item");
    }
    if (!seen.insert({link.producer, link.consumer}).second) {
      throw Error("There are two links from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name + "'");
    }
  }
}

void check_schedule(const Program& program) {
  std::vector<std::set<int64_t>> seen(program.segments.size());
  for (size_t ipu = 0; ipu < program.schedule.size(); ++ipu) {
    for (const Action& action : program.schedule[ipu]) {
      check_id(program.segments, action.segment, "The schedule", "segment");
      const Segment& segment = program.at(action.segment);
      if (segment.ipu != static_cast<int64_t>(ipu)) {
        throw Error("IPU " + std::to_string(ipu) + " is to run '" + segment.name +
                    "', which belongs to IPU " + std::to_string(segment.ipu));
      }
      if (action.micro_batch < 0) {
        throw Error("'" + segment.name + "' runs for micro-batch " +
                    std::to_string(action.micro_batch) + ", but they are counted from 0");
      }
      if (!seen[action.segment.value].insert(action.micro_batch).second) {
        throw Error("'" + segment.name + "' runs twice for micro-batch " +
                    std::to_string(action.micro_batch));
      }
    }
  }
  for (size_t id = 0; id < program.segments.size(); ++id) {
    const Segment& segment = program.segments[id];
    const size_t expected = segment.kind == SegmentKind::kWindow
                                ? 1
                                : static_cast<size_t>(program.micro_batches_per_window);
    if (seen[id].size() != expected ||
        (expected > 0 && *seen[id].rbegin() + 1 != static_cast<int64_t>(expected))) {
      throw Error("'" + segment.name + "' is scheduled " + std::to_string(seen[id].size()) +
                  " times in a window instead of " + std::to_string(expected));
    }
  }
}

}  // namespace

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
    }
  }
}

void Program::validate() const {
  if (micro_batches_per_window < 1) {
    throw Error("A window has at least 1 micro-batch, not " +
                std::to_string(micro_batches_per_window));
  }
  for (const Output& output : outputs) {
    if (output.period < 1) {
      throw Error("An output's period is at least 1, not " + std::to_string(output.period));
    }
  }
  check_links(*this);
  for (const Segment& segment : segments) RegisterChecker(*this, segment).run();
  check_schedule(*this);
}

std::string Program::text() const {
  std::ostringstream out;
  for (const Segment& segment : segments) {
    out << segment.name << " on IPU " << segment.ipu << ": " << segment.num_registers
        << " registers, " << segment.loads.size() << " loads, " << segment.stores.size()
        << " stores\n";
    for (const Instruction& instruction : segment.instructions) {
      out << "  ";
      for (RegisterId output : instruction.outputs) out << "%" << output.value << " ";
      out << "= " << instruction.op.schema().operator_name() << "(";
      for (const Slot& slot : instruction.slots) out << " %" << slot.source.value;
      out << " )  # " << instruction.debug.node << " " << instruction.debug.source << "\n";
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
