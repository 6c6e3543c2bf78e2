#include "program/program.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

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

// Follows the registers of one piece of code: each is written before it is read, and once.
class RegisterChecker {
 public:
  // `where` names the code, such as "segment 'forward 0'".
  RegisterChecker(int64_t num_registers, std::string where)
      : where_(std::move(where)), written_(num_registers, false) {}

  void check(const Instruction& instruction) {
    const std::string& node = instruction.debug.node;
    for (const Slot& slot : instruction.slots) read(slot.source, node);
    for (const ListSlot& slot : instruction.list_slots) {
      for (RegisterId source : slot.sources) {
        if (source.value >= 0 || !slot.is_optional) read(source, node);
      }
    }
    check_bodies(instruction);
    for (RegisterId dead : instruction.dies) {
      read(dead, node);
      written_[dead.value] = false;
    }
    for (RegisterId output : instruction.outputs) {
      if (output.value >= 0) write(output, node);
    }
  }

  void read(RegisterId id, const std::string& who) const {
    check_range(id, who);
    if (!written_[id.value]) {
      throw Error("'" + who + "' in " + where_ + " reads register " + std::to_string(id.value) +
                  ", which holds nothing there");
    }
  }

  void write(RegisterId id, const std::string& who) {
    check_range(id, who);
    if (written_[id.value]) {
      throw Error("'" + who + "' in " + where_ + " writes register " + std::to_string(id.value) +
                  " again");
    }
    written_[id.value] = true;
  }

 private:
  static size_t num_tensors(const Instruction& instruction, int64_t argument) {
    for (const ListSlot& slot : instruction.list_slots) {
      if (slot.argument == argument) return slot.sources.size();
    }
    return 0;
  }

  void check_bodies(const Instruction& instruction) const {
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
        num_given += num_tensors(instruction, 4) + num_tensors(instruction, 5);
      }
      check_body(instruction.bodies[i], num_given, num_returned);
    }
  }

  static void check_body(const Body& body, size_t num_given, size_t num_returned) {
    if (body.parameters.size() > num_given || body.results.size() != num_returned) {
      throw Error("Body '" + body.name + "' takes " + std::to_string(body.parameters.size()) +
                  " tensors and returns " + std::to_string(body.results.size()) +
                  ", but is given " + std::to_string(num_given) + " and is to return " +
                  std::to_string(num_returned));
    }
    RegisterChecker inner(body.num_registers, "body '" + body.name + "'");
    for (RegisterId parameter : body.parameters) {
      if (parameter.value >= 0) inner.write(parameter, "a parameter");
    }
    if (body.iteration.value >= 0) inner.write(body.iteration, "the iteration");
    for (const Instruction& instruction : body.instructions) inner.check(instruction);
    for (RegisterId result : body.results) inner.read(result, "a result");
  }

  void check_range(RegisterId id, const std::string& who) const {
    if (id.value < 0 || id.value >= static_cast<int64_t>(written_.size())) {
      throw Error("'" + who + "' in " + where_ + " names register " + std::to_string(id.value) +
                  " of " + std::to_string(written_.size()));
    }
  }

  std::string where_;
  std::vector<bool> written_;
};

// Checks one segment: its registers, and that what it names exists.
class SegmentChecker {
 public:
  SegmentChecker(const Program& program, const Segment& segment)
      : program_(program),
        segment_(segment),
        registers_(segment.num_registers, "segment '" + segment.name + "'") {}

  void run() {
    const std::string where = "A reduction of segment '" + segment_.name + "'";
    for (AccumulatorId id : segment_.reductions) {
      check_id(program_.accumulators, id, where, "accumulator");
    }
    for (const Load& load : segment_.loads) {
      check_source(load.source);
      registers_.write(load.target, "a load");
    }
    for (LinkId id : segment_.incoming) {
      for (RegisterId target : program_.links[id.value].consumer_registers) {
        registers_.write(target, "a link");
      }
    }
    for (const Instruction& instruction : segment_.instructions) registers_.check(instruction);
    for (const Store& store : segment_.stores) {
      check_target(store.target);
      registers_.read(store.source, "a store");
    }
    for (LinkId id : segment_.outgoing) {
      for (RegisterId source : program_.links[id.value].producer_registers) {
        registers_.read(source, "a link");
      }
    }
  }

 private:
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
          program_.variables[store->variable.value].is_per_replica &&
          segment_.runners.size() == 1) {
        throw Error(where + " assigns a variable that each replica has its own of");
      }
    } else if (const auto* store = std::get_if<Accumulate>(&target)) {
      check_id(program_.accumulators, store->accumulator, where, "accumulator");
    }
  }

  const Program& program_;
  const Segment& segment_;
  RegisterChecker registers_;
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
  std::set<std::tuple<SegmentId, SegmentId, bool>> seen;
  for (const Link& link : program.links) {
    const std::string where = "A link";
    check_id(program.segments, link.producer, where, "segment");
    check_id(program.segments, link.consumer, where, "segment");
    if (link.producer_registers.size() != link.consumer_registers.size() || link.capacity < 1) {
      throw Error("The link from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name +
                  "' needs as many registers at both ends and room for at least one item");
    }
    const Segment& producer = program.at(link.producer);
    if (producer.kind == SegmentKind::kWindow && producer.runners.size() > 1 &&
        producer.runners != program.at(link.consumer).runners) {
      throw Error("The link from '" + producer.name + "' to '" + program.at(link.consumer).name +
                  "' needs the same runners at both ends, or one that sends");
    }
    if (!seen.insert({link.producer, link.consumer, link.is_remote}).second) {
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
  return Control::kOperator;
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
  for (const Segment& segment : segments) SegmentChecker(*this, segment).run();
  check_schedule(*this);
}

bool Program::has_host_calls() const {
  return std::any_of(segments.begin(), segments.end(),
                     [](const Segment& segment) { return calls_host(segment.instructions); });
}

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
