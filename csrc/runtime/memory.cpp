#include "runtime/memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "common/errors.h"

namespace poptorch_emu {

DeviceMemory::DeviceMemory(const Program& program, int64_t num_replicas) : program_(program) {
  for (const Variable& variable : program.variables) {
    const int64_t copies = variable.is_per_replica ? num_replicas : 1;
    std::vector<at::Tensor> tensors;
    for (int64_t i = 0; i < copies; ++i) {
      tensors.push_back(at::zeros(variable.shape, at::TensorOptions(variable.dtype)));
    }
    variables_.push_back(std::move(tensors));
  }
  for (const Scalar& scalar : program.scalars) {
    scalars_.push_back(at::full({}, scalar.value, at::TensorOptions(at::kDouble)));
  }
  accumulators_.resize(program.accumulators.size());
  for (AccumulatorState& state : accumulators_) state.of_replica.resize(num_replicas);
}

at::Tensor& DeviceMemory::slot(VariableId id, int64_t replica) {
  std::vector<at::Tensor>& copies = variables_.at(id.value);
  return copies.at(copies.size() == 1 ? 0 : replica);
}

const at::Tensor& DeviceMemory::variable(VariableId id, int64_t replica) const {
  const std::vector<at::Tensor>& copies = variables_.at(id.value);
  return copies.at(copies.size() == 1 ? 0 : replica);
}

void DeviceMemory::write(VariableId id, int64_t replica, const at::Tensor& value) {
  const Variable& variable = program_.variables.at(id.value);
  if (value.sizes() != at::IntArrayRef(variable.shape) || value.scalar_type() != variable.dtype) {
    throw Error("Variable '" + variable.name + "' is given a tensor " + describe(value) +
                ", which is not of its shape and type: " + describe(slot(id, replica)) + ".");
  }
  slot(id, replica) = value.detach().clone(at::MemoryFormat::Contiguous);
}

at::Tensor DeviceMemory::read(VariableId id, int64_t replica) const {
  return variable(id, replica).clone(at::MemoryFormat::Contiguous);
}

at::Tensor DeviceMemory::load(VariableId id, int64_t replica) {
  const at::Tensor& value = variable(id, replica);
  return program_.variables[id.value].is_remote ? remote_.load(value) : value;
}

void DeviceMemory::assign(VariableId id, int64_t replica, at::Tensor value) {
  if (program_.variables[id.value].is_remote) value = remote_.store(value);
  at::Tensor& target = slot(id, replica);
  {
    std::lock_guard lock(undo_mutex_);
    undo_.push_back({id, replica, target});
  }
  target = std::move(value);
}

void DeviceMemory::commit() { undo_.clear(); }

void DeviceMemory::roll_back() {
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) {
    slot(undo->variable, undo->replica) = std::move(undo->value);
  }
  undo_.clear();
}

void DeviceMemory::set_scalar(ScalarId id, double value) { scalars_.at(id.value).fill_(value); }

void DeviceMemory::accumulate(AccumulatorId id, int64_t replica, at::Tensor value, int64_t index) {
  const Accumulator& accumulator = program_.accumulators[id.value];
  at::Tensor& kept = accumulators_[id.value].of_replica[replica];
  const bool is_first = index == 0 || !kept.defined();
  at::Tensor sum = is_first ? at::Tensor() : accumulator.is_remote ? remote_.load(kept) : kept;
  if (is_first) {
    if (value.scalar_type() != accumulator.dtype) {
      sum = value.to(accumulator.dtype);
    } else if (value.use_count() == 1 && value.storage().use_count() == 1 &&
               value.is_non_overlapping_and_dense()) {
      sum = std::move(value);
    } else {
      sum = value.clone();
    }
  } else if (accumulator.is_running_mean) {
    const double n = static_cast<double>(index);
    sum.mul_(n / (n + 1.0)).add_(value.to(accumulator.dtype), 1.0 / (n + 1.0));
  } else {
    sum.add_(value.to(accumulator.dtype));
  }
  kept = accumulator.is_remote ? remote_.store(sum) : std::move(sum);
}

const at::Tensor& DeviceMemory::reduced(AccumulatorId id) {
  AccumulatorState& state = accumulators_[id.value];
  at::Tensor& total = state.of_replica[0];
  if (!total.defined()) {
    throw Error("Accumulator '" + program_.accumulators[id.value].name + "' is empty.");
  }
  if (!state.is_reduced) {
    for (size_t replica = 1; replica < state.of_replica.size(); ++replica) {
      total.add_(state.of_replica[replica]);
    }
    state.is_reduced = true;
  }
  return total;
}

at::Tensor DeviceMemory::load_reduced(AccumulatorId id) {
  const at::Tensor& total = reduced(id);
  return program_.accumulators[id.value].is_remote ? remote_.load(total) : total;
}

void DeviceMemory::clear_accumulators() {
  for (AccumulatorState& state : accumulators_) {
    for (at::Tensor& tensor : state.of_replica) tensor.reset();
    state.is_reduced = false;
  }
}

int64_t DeviceMemory::variable_bytes() const {
  int64_t bytes = 0;
  for (const auto& copies : variables_) {
    for (const at::Tensor& tensor : copies) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace poptorch_emu
