#include "runtime/summand_order.h"

#include <ATen/ops/empty_strided.h>

#include <cstring>

#include "runtime/segment_memory.h"

namespace poptorch_emu {
namespace {

// Copying more takes longer than most waits (assumed).
constexpr size_t kMostBytes = 64 * 1024;

size_t bytes_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.nbytes() : 0; }

bool is_plain(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.is_non_overlapping_and_dense() && !tensor.is_neg());
}

// With the strides of the original, on which the bits of what is made of it may depend.
void copy(const at::Tensor& from, at::Tensor& to) {
  if (!from.defined()) return;
  if (!to.defined() || to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes() ||
      to.strides() != from.strides()) {
    // It lives longer than the micro-batch: no plan of the engine has it.
    const SegmentMemory::Suspension outside;
    to = at::empty_strided(from.sizes(), from.strides(), from.options());
  }
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}

}  // namespace

// The place is free: what lay there was added before the number that is next.
bool SummandOrder::keep(int64_t index, const at::Tensor& first, const at::Tensor& second) {
  if (bytes_of(first) + bytes_of(second) > kMostBytes || !is_plain(first) || !is_plain(second)) {
    return false;
  }
  if (index >= next_ + kMostKept) return false;
  Kept& kept = kept_[index % kMostKept];
  copy(first, kept.first);
  copy(second, kept.second);
  kept.number = index;
  return true;
}

// Only one thread gets it.
SummandOrder::Kept* SummandOrder::take(int64_t number) {
  Kept& kept = kept_[number % kMostKept];
  return kept.number == number && kept.number.compare_exchange_strong(number, -1) ? &kept : nullptr;
}

void SummandOrder::clear() {
  next_ = 0;
  for (Kept& kept : kept_) kept.number = -1;
}

}  // namespace poptorch_emu
