#include "runtime/gradients/summand_order.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>

#include "runtime/memory/engine_memory.h"

namespace poptorch_emu {
namespace {

// Maximum size of a copy; copying more takes longer than most waits (assumed).
constexpr int64_t kMostBytes = 64 * 1024;

// Returns how many numbers a tensor has in memory if it has no gaps, otherwise -1. An expanded
// tensor has fewer numbers than elements.
int64_t count_of(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.numel();
  at::Tensor once = tensor;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 0) once = once.select(dim, 0);
  }
  return once.is_non_overlapping_and_dense() ? once.numel() : -1;
}

// Returns the size in bytes without gaps, 0 for an undefined tensor, and -1 for a tensor with gaps.
int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const int64_t count = tensor.is_neg() ? -1 : count_of(tensor);
  return count < 0 ? -1 : count * static_cast<int64_t>(tensor.element_size());
}

// Copies a tensor with its strides, because results computed from it may depend on them.
void copy(const at::Tensor& from, int64_t num_bytes, at::Tensor& to) {
  if (!from.defined()) return;
  if (!to.defined() || to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes() ||
      to.strides() != from.strides()) {
    // The copy outlives the micro-batch, so that its memory must not come from a memory plan.
    const SegmentMemory::Suspension outside;
    to = at::empty_strided(from.sizes(), from.strides(), from.options());
  }
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), num_bytes);
}

}  // namespace

bool SummandOrder::keep(int64_t index, const at::Tensor& first, const at::Tensor& second) {
  const int64_t first_bytes = bytes_of(first), second_bytes = bytes_of(second);
  if (std::min(first_bytes, second_bytes) < 0 || first_bytes + second_bytes > kMostBytes) {
    return false;
  }
  Kept* const kept = take(kFree);
  if (kept == nullptr) return false;
  copy(first, first_bytes, kept->first);
  copy(second, second_bytes, kept->second);
  number_of(*kept) = index;
  return true;
}

SummandOrder::Kept* SummandOrder::take(int64_t number) {
  for (size_t place = 0; place < kept_.size(); ++place) {
    int64_t expected = number;
    if (numbers_[place] == number && numbers_[place].compare_exchange_strong(expected, kTaken)) {
      return &kept_[place];
    }
  }
  return nullptr;
}

void SummandOrder::clear() {
  next_ = 0;
  for (std::atomic<int64_t>& number : numbers_) number = kFree;
}

}  // namespace poptorch_emu
