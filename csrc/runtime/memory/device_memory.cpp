#include "runtime/memory/device_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/safe_numerics.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "common/errors.h"
#include "numerics/row_copies.h"
#include "runtime/memory/block_pool.h"

namespace poptorch_emu {
namespace {

// Requests huge pages for memory that is not written yet, if it is large enough. With them,
// scattered reads wait less for address translation. The system may ignore the request.
void prefer_huge_pages(void* begin, int64_t num_bytes) {
  constexpr uintptr_t kPageBytes = 4096;
  constexpr int64_t kFewestBytes = int64_t{1} << 22;
  if (num_bytes < kFewestBytes) return;
  const auto place = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (place + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t end = (place + static_cast<uintptr_t>(num_bytes)) / kPageBytes * kPageBytes;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

int64_t count_copies(const Variable& variable, int64_t num_replicas) {
  if (variable.is_per_replica || variable.is_sharded) return num_replicas;
  const std::vector<int64_t>& groups = variable.groups.of_replica;
  return groups.empty() ? 1 : 1 + *std::max_element(groups.begin(), groups.end());
}

at::Tensor copied(const at::Tensor& tensor) {
  at::Tensor copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  prefer_huge_pages(copy.mutable_data_ptr(), static_cast<int64_t>(copy.nbytes()));
  return copy.copy_(tensor);
}

// Returns zeros of this shape. The system zeroes large ones page by page at their first use, so
// that nothing is zeroed here. For example, a weight is written before it is read.
at::Tensor zeros_in_own_memory(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr uint64_t kFewestBytes = uint64_t{1} << 20;
  uint64_t num_bytes = c10::elementSize(dtype);
  uint64_t num_elements = 0;
  const bool is_too_large = c10::safe_multiplies_u64(sizes, &num_elements) ||
                            c10::mul_overflows(num_bytes, num_elements, &num_bytes);
  // PyTorch raises its own error for sizes that exceed the range of integers.
  if (is_too_large || num_bytes < kFewestBytes) return at::zeros(sizes, at::TensorOptions(dtype));
  const auto block = std::make_shared<Block>(static_cast<int64_t>(num_bytes));
  prefer_huge_pages(block->data(), block->num_bytes());
  return at::from_blob(block->data(), sizes, [block](void*) {}, at::TensorOptions(dtype));
}

Error cannot_hold(const Variable& variable, const std::string& reason) {
  return Error("The host cannot hold variable '" + variable.name + "' of shape " +
               describe(variable.shape) + ": " + reason);
}

// Returns zeros in memory of their own. Throws `Error` if there is no memory for them.
at::Tensor zeros_of(const Variable& variable, int64_t copy, int64_t num_replicas) {
  std::vector<int64_t> sizes;
  try {
    // A view of one number in the shape of the variable, which allocates nothing.
    const at::Tensor zeros =
        at::zeros({}, at::TensorOptions(variable.dtype)).expand(variable.shape);
    sizes = (variable.is_sharded ? shard_of(zeros, copy, num_replicas) : zeros).sizes().vec();
    return zeros_in_own_memory(sizes, variable.dtype);
  } catch (const c10::Error& error) {
    throw cannot_hold(variable, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    const int64_t num_bytes =
        c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(variable.dtype));
    throw cannot_hold(variable,
                      "the system has no memory for its " + std::to_string(num_bytes) + " bytes");
  }
}

// Returns whether no other tensor shares the memory of a variable, so that it may be overwritten.
bool has_own_memory(const at::Tensor& stored) {
  return stored.use_count() == 1 && stored.storage().use_count() == 1 && stored.is_contiguous();
}

}  // namespace

DeviceMemory::DeviceMemory(const Program& program, const Replicas& replicas)
    : program_(program), replicas_(replicas) {
  for (const Variable& variable : program.variables) {
    std::vector<at::Tensor> tensors;
    for (int64_t i = 0; i < count_copies(variable, replicas.here); ++i) {
      tensors.push_back(zeros_of(variable, i, replicas.here));
    }
    num_changes_.emplace_back(tensors.size(), 0);
    variables_.push_back(std::move(tensors));
  }
  gathering_.resize(variables_.size());
  for (const Scalar& scalar : program.scalars) {
    scalars_.push_back(at::full({}, scalar.value, at::TensorOptions(at::kDouble)));
  }
  num_scalar_changes_.resize(scalars_.size(), 0);
}

int64_t DeviceMemory::copy_of(VariableId id, int64_t replica) const {
  const Variable& variable = program_.variables.at(id.value);
  const bool has_own = variable.is_per_replica || variable.is_sharded;
  return has_own ? replica : variable.groups.of(replica);
}

at::Tensor DeviceMemory::variable(VariableId id, int64_t replica) const {
  const Variable& variable = program_.variables.at(id.value);
  if (variable.is_sharded) return gathered(variables_.at(id.value), variable.shape);
  return stored(id, replica);
}

at::Tensor DeviceMemory::variable_shard(VariableId id, int64_t replica) const {
  const at::Tensor& own = stored(id, replica);
  return program_.variables.at(id.value).is_sharded
             ? own
             : shard_of(own, replicas_.first + replica, replicas_.all);
}

void DeviceMemory::write(VariableId id, int64_t replica, const at::Tensor& value) {
  const Variable& variable = program_.variables.at(id.value);
  if (value.sizes() != at::IntArrayRef(variable.shape) || value.scalar_type() != variable.dtype) {
    throw Error("Variable '" + variable.name + "' is given a tensor " + describe(value) +
                ", but its shape and type are those of " + describe(this->variable(id, replica)) +
                ".");
  }
  const at::Tensor whole = value.detach();
  if (!variable.is_sharded) {
    at::Tensor& target = slot(id, replica);
    if (has_own_memory(target) && whole.is_contiguous() && !whole.is_neg() && !whole.is_conj()) {
      std::memcpy(target.mutable_data_ptr(), whole.const_data_ptr(), whole.nbytes());
    } else {
      target = copied(whole);
    }
    note_change(id, replica);
    return;
  }
  for (int64_t part = 0; part < replicas_.here; ++part) {
    slot(id, part) = shard_of(whole, part, replicas_.here).clone();
    note_change(id, part);
  }
}

at::Tensor DeviceMemory::read(VariableId id, int64_t replica) const {
  return variable(id, replica).clone(at::MemoryFormat::Contiguous);
}

void DeviceMemory::assign(VariableId id, int64_t replica, at::Tensor value) {
  note_change(id, replica);
  at::Tensor& target = slot(id, replica);
  {
    std::lock_guard lock(undo_mutex_);
    undo_.push_back({id, replica, target});
  }
  target = std::move(value);
}

void DeviceMemory::assign_shard(VariableId id, int64_t replica, at::Tensor value) {
  const Variable& variable = program_.variables[id.value];
  if (variable.is_sharded) {
    assign(id, replica, std::move(value));
    return;
  }
  at::Tensor whole;
  {
    std::lock_guard lock(gathering_mutex_);
    at::Tensor& target = gathering_[id.value];
    if (!target.defined()) {
      target = at::empty(variable.shape, at::TensorOptions(variable.dtype));
    }
    whole = target;
  }
  put_shard(whole, replicas_.first + replica, replicas_.all, value);
}

void DeviceMemory::gather(const std::vector<VariableId>& ids, Ring& ring, int64_t number) {
  std::vector<at::Tensor> wholes;
  for (VariableId id : ids) {
    if (!gathering_[id.value].defined()) {
      throw Error("Variable '" + program_.variables[id.value].name +
                  "' is gathered from all processes, but no part of it was assigned.");
    }
    wholes.push_back(gathering_[id.value]);
  }
  ring.all_gather(number, wholes, replicas_.here);
}

void DeviceMemory::assign_rows(VariableId id, int64_t replica, at::Tensor rows, at::Tensor values) {
  const Variable& variable = program_.variables[id.value];
  if (values.scalar_type() != variable.dtype ||
      values.sizes() != at::IntArrayRef({rows.numel(), variable.shape.at(1)})) {
    throw Error("Rows of '" + variable.name + "' are given " + describe(values) + ", but " +
                std::to_string(rows.numel()) + " of them were touched.");
  }
  std::lock_guard lock(undo_mutex_);
  pending_rows_.push_back({id, replica, std::move(rows), values.contiguous()});
}

// Copies bytes, because operators may not change a variable that was created in inference mode.
void DeviceMemory::put(const PendingRows& pending) {
  note_change(pending.variable, pending.replica);
  at::Tensor& target = slot(pending.variable, pending.replica);
  if (!target.is_contiguous()) target = target.contiguous();
  scatter_rows(target, pending.rows, pending.values);
}

void DeviceMemory::commit() {
  for (const PendingRows& pending : pending_rows_) put(pending);
  pending_rows_.clear();
  for (size_t id = 0; id < gathering_.size(); ++id) {
    if (!gathering_[id].defined()) continue;
    note_change({static_cast<int64_t>(id)}, /*replica=*/0);
    variables_[id].front() = std::move(gathering_[id]);
  }
  undo_.clear();
}

void DeviceMemory::roll_back() {
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) {
    note_change(undo->variable, undo->replica);
    slot(undo->variable, undo->replica) = std::move(undo->value);
  }
  undo_.clear();
  pending_rows_.clear();
  for (at::Tensor& whole : gathering_) whole.reset();
}

void DeviceMemory::set_scalar(ScalarId id, double value) {
  ++num_scalar_changes_[id.value];
  // Creates a new tensor, because operators may not change one that was created in inference mode.
  scalars_.at(id.value) = at::full({}, value, at::TensorOptions(at::kDouble));
}

int64_t DeviceMemory::variable_bytes() const {
  int64_t bytes = 0;
  for (const std::vector<at::Tensor>& copies : variables_) {
    for (const at::Tensor& tensor : copies) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

int64_t DeviceMemory::replica_bytes(int64_t replica) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < variables_.size(); ++i) {
    bytes += static_cast<int64_t>(stored({static_cast<int64_t>(i)}, replica).nbytes());
  }
  return bytes;
}

}  // namespace poptorch_emu
