#include "runtime/executor/frame.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/errors.h"
#include "common/sharing.h"
#include "numerics/row_update.h"
#include "runtime/executor/floating_point.h"
#include "runtime/network/collective.h"

namespace poptorch_emu {

namespace {

// An error whose text already names the instruction.
class DescribedError : public Error {
  using Error::Error;
};

// Up to this number of elements a kernel gains nothing from a second thread (assumed).
constexpr int64_t kFewElements = 8192;

// Returns whether an operation runs on one thread. The number of threads may change bits, so that
// it depends on the arguments only.
bool is_for_one_thread(const torch::jit::Stack& arguments) {
  return std::none_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    if (!argument.isTensor()) return argument.isTensorList() || argument.isOptionalTensorList();
    return argument.toTensor().defined() && argument.toTensor().numel() > kFewElements;
  });
}

// Returns copies of instructions that share no list among their arguments.
std::vector<Instruction> with_own_lists(std::vector<Instruction> instructions) {
  for (Instruction& instruction : instructions) {
    for (c10::IValue& argument : instruction.arguments) {
      if (argument.isList()) argument = argument.deepcopy();
    }
    for (Body& body : instruction.bodies) {
      body.instructions = with_own_lists(std::move(body.instructions));
    }
  }
  return instructions;
}

void take_results(const std::vector<RegisterId>& outputs, std::vector<at::Tensor>& registers,
                  torch::jit::Stack& stack) {
  if (stack.size() == 1 && stack[0].isTensorList()) {
    c10::List<at::Tensor> list = std::move(stack[0]).toTensorList();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].value >= 0) registers[outputs[i].value] = list.extract(i);
    }
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].value >= 0) registers[outputs[i].value] = std::move(stack[i]).toTensor();
  }
}

}  // namespace

std::string micro_batches_text(const Program& program, const Segment& segment,
                               int64_t micro_batch) {
  if (program.joined == 1 || segment.kind != SegmentKind::kMicroBatch) {
    return "micro-batch " + std::to_string(micro_batch);
  }
  const int64_t first = micro_batch * program.joined, last = first + program.joined - 1;
  return "micro-batches " + std::to_string(first) + " to " + std::to_string(last);
}

Frame::Frame(const Program& program, const Segment& segment, int64_t lane, HostCaller call_host,
             SumAccess sums, Replicas replicas)
    : program_(program),
      segment_(segment),
      is_first_lane_(lane == 0),
      own_instructions_(is_first_lane_ ? std::vector<Instruction>()
                                       : with_own_lists(segment.instructions)),
      own_(is_first_lane_ ? 0 : segment.num_registers),
      call_host_(std::move(call_host)),
      sums_(std::move(sums)),
      replicas_(replicas),
      registers_(segment.num_registers) {}

const at::Tensor& Frame::own(RegisterId id, const at::Tensor& shared) {
  const bool is_plain = shared.layout() == at::kStrided && !shared.is_conj() && !shared.is_neg();
  if (is_first_lane_ || !is_plain) return shared;
  Own& entry = own_[id.value];
  if (!entry.shared.is_same(shared)) {
    entry.shared = shared;
    entry.own = at::from_blob(
        shared.data_ptr(), shared.sizes(), shared.strides(), [shared](void*) {}, shared.options());
  }
  return entry.own;
}

void Frame::forget(RegisterId id, const at::Tensor& shared) {
  if (!is_first_lane_ && !own_[id.value].shared.is_same(shared)) own_[id.value] = {};
}

bool Frame::run(int64_t micro_batch, int64_t replica) {
  micro_batch_ = micro_batch;
  replica_ = replica;
  trail_.clear();
  has_threads_ = at::get_num_threads() > 1;
  next_ = 0;
  return run_to_collective();
}

bool Frame::run_to_collective() {
  for (; next_ < code().size(); ++next_) {
    const Instruction& instruction = code()[next_];
    if (instruction.control == Control::kCollective && parts_.empty()) return false;
    run_instruction(instruction, registers_, stack_);
  }
  return true;
}

// Returns a copy, because a later instruction may overwrite the value.
at::Tensor Frame::part() const {
  const at::Tensor& own = registers_[code()[next_].slots.front().source.value];
  return own.clone(at::MemoryFormat::Contiguous);
}

bool Frame::resume(std::vector<at::Tensor> parts) {
  has_threads_ = at::get_num_threads() > 1;
  parts_ = std::move(parts);
  return run_to_collective();
}

void Frame::run_code(const std::vector<Instruction>& code, Tensors& registers,
                     torch::jit::Stack& stack) {
  for (const Instruction& instruction : code) run_instruction(instruction, registers, stack);
}

inline void Frame::run_instruction(const Instruction& instruction, Tensors& registers,
                                   torch::jit::Stack& stack) {
  try {
    execute(instruction, registers, stack);
  } catch (const DescribedError&) {
    throw;
  } catch (const c10::Error& error) {
    fail(instruction, registers, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(instruction, registers, error.what());
  }
}

void Frame::execute(const Instruction& instruction, Tensors& registers, torch::jit::Stack& stack) {
  stack.assign(instruction.arguments.begin(), instruction.arguments.end());
  for (const Slot& slot : instruction.slots) {
    stack[slot.argument] = c10::IValue(registers[slot.source.value]);
  }
  for (const ListSlot& slot : instruction.list_slots) {
    if (slot.is_optional) {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(slot.sources.size());
      for (RegisterId source : slot.sources) {
        list.push_back(source.value < 0 ? std::optional<at::Tensor>()
                                        : std::optional<at::Tensor>(registers[source.value]));
      }
      stack[slot.argument] = std::move(list);
    } else {
      c10::List<at::Tensor> list;
      list.reserve(slot.sources.size());
      for (RegisterId source : slot.sources) list.push_back(registers[source.value]);
      stack[slot.argument] = std::move(list);
    }
  }
  const bool is_kernel =
      instruction.control == Control::kOperator || instruction.control == Control::kAddProduct;
  const OneThread one(has_threads_ && is_kernel && is_for_one_thread(stack));
  switch (instruction.control) {
    case Control::kOperator:
      instruction.op.callBoxed(stack);
      break;
    case Control::kForLoop:
      run_for_loop(instruction, stack);
      break;
    case Control::kCond:
      run_cond(instruction, stack);
      break;
    case Control::kHostCall:
      run_host_call(stack);
      break;
    case Control::kAddProduct:
      run_add_product(instruction, stack);
      break;
    case Control::kUpdateRows:
      run_update_rows(instruction, stack);
      break;
    case Control::kCollective:
      run_collective(instruction, stack);
      break;
    case Control::kOwnPiece:
      run_own_piece(stack);
      break;
  }
  if (program_.numerics.checks_floating_point) check_floating_point(instruction, registers, stack);
  for (RegisterId dead : instruction.dies) registers[dead.value].reset();
  take_results(instruction.outputs, registers, stack);
  stack.clear();
}

void Frame::run_add_product(const Instruction& instruction, torch::jit::Stack& stack) {
  const at::Tensor left = std::move(stack[0]).toTensor(), right = std::move(stack[1]).toTensor();
  at::Tensor row_sums;
  const bool has_results = !instruction.op.schema().returns().empty();
  const ProductKernel kernel = product_kernel(stack[2].toInt());
  sums_.add_product(sum_of(instruction), micro_batch_,
                    {left, right, kernel, has_results ? &row_sums : nullptr});
  stack.clear();
  if (has_results) stack.emplace_back(std::move(row_sums));
}

void Frame::run_update_rows(const Instruction& instruction, torch::jit::Stack& stack) {
  const Tensors matrices = stack[0].toTensorVector(), scalars = stack[1].toTensorVector();
  const std::vector<int64_t> operations = stack[2].toIntVector();
  const std::vector<double> constants = stack[3].toDoubleVector();
  const std::vector<int64_t> results = stack[4].toIntVector(), places = stack[5].toIntVector();
  Tensors updated = update_rows(sums_.summands(sum_of(instruction)), matrices,
                                {operations, constants, scalars, results, places});
  stack.clear();
  stack.emplace_back(c10::List<at::Tensor>(std::move(updated)));
}

void Frame::run_collective(const Instruction& instruction, torch::jit::Stack& stack) {
  const Tensors parts = std::exchange(parts_, {});
  stack.clear();
  stack.emplace_back(
      collective_result(instruction, parts, replicas_.first + replica_, replicas_.all));
}

void Frame::run_own_piece(torch::jit::Stack& stack) const {
  const at::Tensor all = std::move(stack[0]).toTensor();
  stack.clear();
  stack.emplace_back(all.select(0, replicas_.first + replica_).clone());
}

void Frame::clear() {
  for (at::Tensor& tensor : registers_) tensor.reset();
  parts_.clear();
}

void Frame::fail(const Instruction& instruction, const Tensors& registers,
                 const std::string& cause) const {
  std::ostringstream out;
  out << "Exception while executing node '" << instruction.debug.node
      << "': " << instruction.op.schema().operator_name() << "(";
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    c10::IValue value = instruction.arguments[i];
    for (const Slot& slot : instruction.slots) {
      if (slot.argument == static_cast<int64_t>(i)) value = registers[slot.source.value];
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
          << describe(source.value < 0 ? c10::IValue() : registers[source.value]);
    }
    out << "]";
  }
  out << ") in block '" << instruction.debug.block << "', stage " << instruction.debug.stage
      << ", segment '" << segment_.name << "', "
      << micro_batches_text(program_, segment_, micro_batch_) << ", replica " << replica_;
  for (auto place = trail_.rbegin(); place != trail_.rend(); ++place) out << ", in " << *place;
  if (!instruction.debug.module.empty()) out << ", module '" << instruction.debug.module << "'";
  if (!instruction.debug.source.empty()) out << ", at " << instruction.debug.source;
  out << ": " << cause;
  throw DescribedError(out.str());
}

}  // namespace poptorch_emu
