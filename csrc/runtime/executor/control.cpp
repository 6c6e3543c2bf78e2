// Instructions of a frame that are loops, branches and host calls.

#include <ATen/core/List.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include "common/errors.h"
#include "runtime/executor/frame.h"

namespace poptorch_emu {
namespace {

void append(std::vector<at::Tensor>& target, const std::vector<at::Tensor>& more) {
  target.insert(target.end(), more.begin(), more.end());
}

void give(std::vector<at::Tensor> results, torch::jit::Stack& stack) {
  stack.clear();
  stack.emplace_back(c10::List<at::Tensor>(std::move(results)));
}

}  // namespace

void Frame::run_for_loop(const Instruction& instruction, torch::jit::Stack& stack) {
  const Body& body = instruction.bodies.front();
  const int64_t count = stack[1].toInt();
  const bool is_reversed = stack[2].toBool();
  Tensors carried = stack[3].toTensorVector();
  const Tensors scanned = stack[4].toTensorVector();
  const Tensors captured = stack[5].toTensorVector();
  stack.clear();
  const size_t num_carried = carried.size();
  std::vector<Tensors> collected(body.results.size() - num_carried, Tensors(count));
  for (int64_t step = 0; step < count; ++step) {
    const int64_t iteration = is_reversed ? count - 1 - step : step;
    Tensors arguments = std::move(carried);
    for (const at::Tensor& rows : scanned) arguments.push_back(rows.select(0, iteration));
    append(arguments, captured);
    trail_.push_back("iteration " + std::to_string(iteration) + " of '" + instruction.debug.node +
                     "'");
    Tensors results = run_body(body, std::move(arguments), iteration);
    trail_.pop_back();
    for (size_t i = 0; i < collected.size(); ++i) {
      collected[i][iteration] = std::move(results[num_carried + i]);
    }
    results.resize(num_carried);
    carried = std::move(results);
  }
  for (const Tensors& rows : collected) carried.push_back(at::stack(rows));
  give(std::move(carried), stack);
}

void Frame::run_cond(const Instruction& instruction, torch::jit::Stack& stack) {
  const bool is_true = stack[0].toTensor().item<bool>();
  const Body& body = instruction.bodies[is_true ? 0 : 1];
  Tensors arguments = stack[is_true ? 3 : 4].toTensorVector();
  stack.clear();
  trail_.push_back("branch '" + body.name + "' of '" + instruction.debug.node + "'");
  Tensors results = run_body(body, std::move(arguments), 0);
  trail_.pop_back();
  give(std::move(results), stack);
}

void Frame::run_host_call(torch::jit::Stack& stack) {
  const std::string name = stack[0].toStringRef();
  const c10::List<c10::IValue> types = stack[2].toList();
  Tensors results = call_host_(name, stack[1].toTensorVector());
  if (results.size() != types.size()) {
    throw Error("Host function '" + name + "' returned " + std::to_string(results.size()) +
                " tensors, but " + std::to_string(types.size()) + " when the model was compiled.");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string expected = types.get(i).toStringRef();
    if (describe(results[i]) != expected) {
      throw Error("Host function '" + name + "' returned " + describe(results[i]) + " as result " +
                  std::to_string(i) + ", but " + expected +
                  " when the model was compiled. Shapes and types may not depend on values.");
    }
  }
  give(std::move(results), stack);
}

std::vector<at::Tensor> Frame::run_body(const Body& body, Tensors arguments, int64_t iteration) {
  Tensors registers(body.num_registers);
  for (size_t i = 0; i < body.parameters.size(); ++i) {
    const RegisterId parameter = body.parameters[i];
    if (parameter.value >= 0) registers[parameter.value] = std::move(arguments[i]);
  }
  arguments.clear();
  if (body.iteration.value >= 0) {
    registers[body.iteration.value] = at::scalar_tensor(iteration, at::kLong);
  }
  torch::jit::Stack stack;
  run_code(body.instructions, registers, stack);
  Tensors results;
  for (RegisterId result : body.results) results.push_back(registers[result.value]);
  return results;
}

}  // namespace poptorch_emu
