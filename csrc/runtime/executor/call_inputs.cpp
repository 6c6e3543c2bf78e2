#include "runtime/executor/call_inputs.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <string>

#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Returns the same view as `narrow` in the first dimension, without the dispatcher.
at::Tensor rows_view(const at::Tensor& whole, int64_t first, int64_t rows) {
  c10::SmallVector<int64_t, 6> sizes(whole.sizes().begin(), whole.sizes().end());
  sizes[0] = rows;
  auto view = whole.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  view->set_sizes_and_strides(sizes, whole.strides(),
                              whole.storage_offset() + first * whole.stride(0));
  return at::Tensor(std::move(view));
}

// Required alignment of the rows of an input, in bytes. On some processors MKL runs other code,
// with other bits, for rows with less alignment.
constexpr int64_t kAligned = 16;

bool is_aligned(int64_t place) { return place % kAligned == 0; }

// Returns whether a kernel may compute other bits for a tensor, or for blocks of `block_bytes` in
// it, than for a copy in memory of its own.
bool may_have_other_bits(const at::Tensor& whole, int64_t block_bytes) {
  if (!whole.is_floating_point() && !whole.is_complex()) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(whole.const_data_ptr());
  return !is_aligned(static_cast<int64_t>(address)) || !is_aligned(block_bytes);
}

}  // namespace

CallInputs::CallInputs(const Program& program, const std::vector<int64_t>& group_of_replica)
    : program_(program),
      group_of_replica_(group_of_replica),
      num_groups_(1 + *std::max_element(group_of_replica.begin(), group_of_replica.end())) {}

void CallInputs::check(const std::vector<at::Tensor>& inputs, int64_t num_windows) const {
  if (inputs.size() != program_.inputs.size()) {
    throw Error("The program takes " + std::to_string(program_.inputs.size()) +
                " inputs, but was given " + std::to_string(inputs.size()) + ".");
  }
  if (num_windows < 1) {
    throw Error("A call runs at least 1 window, not " + std::to_string(num_windows) + ".");
  }
  int64_t num_blocks = num_groups_;
  for (int64_t factor : {program_.micro_batches_per_window, num_windows}) {
    if (!__builtin_mul_overflow(num_blocks, factor, &num_blocks)) continue;
    throw Error("A call of " + std::to_string(num_windows) +
                " windows has more micro-batches than can be counted.");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!program_.inputs[i].is_batched) continue;
    if (inputs[i].dim() == 0 || inputs[i].size(0) % num_blocks != 0) {
      throw Error("Input " + program_.inputs[i].name + " is " + describe(inputs[i]) +
                  ", but its first dimension must be a multiple of " + std::to_string(num_blocks) +
                  ".");
    }
  }
}

void CallInputs::begin_call(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  inputs_ = inputs;
  num_blocks_ = num_windows * program_.micro_batches_per_window * num_groups_;
}

// Returns copies of a replica's blocks, which lie between the blocks of other replicas.
at::Tensor CallInputs::blocks(const at::Tensor& whole, int64_t first, int64_t rows) const {
  std::vector<at::Tensor> blocks;
  for (int64_t piece = 0; piece < program_.joined; ++piece) {
    blocks.push_back(rows_view(whole, (first + piece * num_groups_) * rows, rows));
  }
  return at::cat(blocks);
}

// Copies all blocks of an input or none, so that each micro-batch allocates the same.
at::Tensor CallInputs::rows(InputId id, const at::Tensor& whole, const Task& task) const {
  if (!program_.inputs[id.value].is_batched) {
    return may_have_other_bits(whole, 0) ? whole.clone() : whole;
  }
  const int64_t rows = whole.size(0) / num_blocks_;
  const int64_t block = task.micro_batch_of_call * num_groups_ + group_of_replica_[task.replica];
  if (program_.joined > 1 && num_groups_ > 1) return blocks(whole, block, rows);
  const at::Tensor view = rows_view(whole, block * rows, rows * program_.joined);
  const int64_t block_bytes = rows * whole.stride(0) * static_cast<int64_t>(whole.element_size());
  return may_have_other_bits(whole, block_bytes) ? view.clone() : view;
}

}  // namespace poptorch_emu
