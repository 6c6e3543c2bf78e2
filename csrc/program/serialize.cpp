#include "program/serialize.h"

#include <algorithm>

#include "program/fields.h"

namespace poptorch_emu {
namespace {

// "IPUPROG" and the version of the format. Increase the version with any change of the stored
// members, or if stored programs must not run any more.
constexpr std::string_view kMagic("IPUPROG\x12", 8);

Instruction read_instruction(Reader& reader) {
  std::string name;
  std::string overload;
  reader(name, overload);
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op) {
    throw Error("The program uses the operator '" + name + "." + overload +
                "', which is not known here. Compile the model again.");
  }
  Instruction instruction{*op, {}, {}, {}, {}, {}, {}, Control::kOperator, {}};
  fields(reader, instruction);
  return instruction;
}

void check_type(const Instruction& instruction, int64_t index, const c10::TypePtr& given) {
  const auto& arguments = instruction.op.schema().arguments();
  const bool exists = index >= 0 && index < static_cast<int64_t>(arguments.size());
  if (!exists || !given->isSubtypeOf(*arguments[index].type())) {
    throw Error("The program gives argument " + std::to_string(index) + " of '" +
                instruction.debug.node + "' a value of type " + given->str() +
                ", which its operator does not take. Compile the model again.");
  }
}

// Throws unless the arguments match the operator's schema; `validate` checks the results.
void check(const Instruction& instruction) {
  const auto& schema = instruction.op.schema();
  if (instruction.arguments.size() != schema.arguments().size()) {
    throw Error("The program gives '" + instruction.debug.node + "' " +
                std::to_string(instruction.arguments.size()) + " arguments, but " + schema.name() +
                " takes " + std::to_string(schema.arguments().size()) +
                ". Compile the model again.");
  }
  std::vector<bool> has_slot(instruction.arguments.size(), false);
  const auto note = [&](int64_t index, const c10::TypePtr& type) {
    check_type(instruction, index, type);
    has_slot[index] = true;
  };
  for (const Slot& slot : instruction.slots) note(slot.argument, c10::TensorType::get());
  for (const ListSlot& slot : instruction.list_slots) {
    note(slot.argument,
         slot.is_optional ? c10::ListType::ofOptionalTensors() : c10::ListType::ofTensors());
  }
  for (size_t i = 0; i < has_slot.size(); ++i) {
    if (!has_slot[i]) {
      check_type(instruction, static_cast<int64_t>(i), instruction.arguments[i].type());
    }
  }
}

// Adds each link to the lists of its two segments.
void connect(Program& program) {
  const auto count = static_cast<int64_t>(program.segments.size());
  for (size_t index = 0; index < program.links.size(); ++index) {
    const Link& link = program.links[index];
    for (SegmentId end : {link.producer, link.consumer}) {
      if (end.value < 0 || end.value >= count) {
        throw Error("The program is damaged: a link names segment " + std::to_string(end.value) +
                    " of " + std::to_string(count) + ". Compile the model again.");
      }
    }
    program.at(link.producer).outgoing.push_back({static_cast<int64_t>(index)});
    program.at(link.consumer).incoming.push_back({static_cast<int64_t>(index)});
  }
}

// Returns the nesting depth of instructions; the instructions of a segment have depth 1.
int64_t depth_of(const std::vector<Instruction>& code) {
  int64_t inside = 0;
  for (const Instruction& instruction : code) {
    for (const Body& body : instruction.bodies) {
      inside = std::max(inside, depth_of(body.instructions));
    }
  }
  return code.empty() ? 0 : 1 + inside;
}

}  // namespace

template <>
Instruction Reader::make<Instruction>() {
  if (depth_ == kMaxDepth) {
    throw Error("The program is damaged: loops and branches lie more than " +
                std::to_string(kMaxDepth) + " deep inside each other. Compile the model again.");
  }
  ++depth_;
  Instruction instruction = read_instruction(*this);
  --depth_;
  check(instruction);
  return instruction;
}

std::string serialize(const Program& program) {
  for (const Segment& segment : program.segments) {
    if (segment.has_host_calls()) {
      throw Error(
          "A program that calls functions of the host (poptorch.CPU) cannot be written to a file: "
          "a file cannot contain Python functions. Compile the model in the process that runs it.");
    }
    const int64_t depth = depth_of(segment.instructions);
    if (depth > kMaxDepth) {
      throw Error("Segment '" + segment.name + "' has loops and branches " +
                  std::to_string(depth - 1) + " deep inside each other, and a file holds at most " +
                  std::to_string(kMaxDepth - 1) + ". Nest fewer of them.");
    }
  }
  Writer body;
  body(program);
  const std::string bytes = body.take();
  Writer file;
  file.raw(kMagic.data(), kMagic.size());
  file(checksum(bytes));
  file.raw(bytes.data(), bytes.size());
  return file.take();
}

Program deserialize(std::string_view bytes) try {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    throw Error(
        "These bytes are not a program of this version of the format. Compile the model "
        "again.");
  }
  bytes.remove_prefix(kMagic.size());
  uint64_t expected = 0;
  Reader header(bytes);
  header(expected);
  bytes.remove_prefix(sizeof expected);
  if (checksum(bytes) != expected) {
    throw Error(
        "The program is damaged or cut short: its checksum is not that of its bytes. "
        "Compile the model again.");
  }
  Program program;
  Reader reader(bytes);
  reader(program);
  if (reader.left() != 0) {
    throw Error("The program is damaged: " + std::to_string(reader.left()) +
                " bytes follow its end. Compile the model again.");
  }
  connect(program);
  program.find_last_uses();
  program.validate();
  return program;
} catch (const Error&) {
  throw;
} catch (const std::exception& cause) {
  throw Error(std::string("The program is damaged: ") + cause.what() +
              ". Compile the model again.");
}

}  // namespace poptorch_emu
