#include "runtime/executor/output_collector.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <string>

#include "common/errors.h"
#include "numerics/permuted_copy.h"

namespace poptorch_emu {

OutputCollector::OutputCollector(const Output& output, int64_t num_micro_batches,
                                 int64_t num_replicas)
    : is_sum_(output.mode == OutputMode::kSum),
      period_(output.mode == OutputMode::kFinal    ? num_micro_batches
              : output.mode == OutputMode::kEveryN ? output.period
                                                   : 1),
      num_micro_batches_(num_micro_batches),
      num_replicas_(num_replicas),
      num_pieces_((is_sum_ ? 1 : num_micro_batches / period_) * num_replicas) {}

int64_t OutputCollector::add(const at::Tensor& piece, int64_t micro_batch, int64_t replica) {
  if ((micro_batch + 1) % period_ != 0) return -1;
  allocate_for(piece);
  if (piece.numel() * num_pieces_ != result_.numel()) {
    throw Error("An output has " + std::to_string(piece.numel()) + " numbers in one place and " +
                std::to_string(result_.numel() / num_pieces_) +
                " in another; it must have as many in all micro-batches and replicas.");
  }
  const int64_t index = (is_sum_ ? 0 : micro_batch / period_) * num_replicas_ + replica;
  const bool is_added = is_sum_ && micro_batch > 0;
  if (!is_added && piece.scalar_type() == result_.scalar_type()) {
    // Copies bytes, because several cores would wait for the reference count that a view changes.
    const size_t num_bytes = piece.nbytes();
    if (num_bytes == 0) return index;
    void* const target = static_cast<char*>(result_.data_ptr()) + index * num_bytes;
    if (piece.is_contiguous() && !piece.is_conj() && !piece.is_neg()) {
      std::memcpy(target, piece.const_data_ptr(), num_bytes);
      return index;
    }
    if (copy_by_tiles(piece, target)) return index;
  }
  at::Tensor target = result_;
  if (num_pieces_ > 1) {
    target = is_scalar_ ? result_.select(0, index)
                        : result_.narrow(0, index * piece.size(0), piece.size(0));
  }
  if (is_added) {
    target.add_(piece);
  } else {
    target.copy_(piece);
  }
  return index;
}

void OutputCollector::allocate_for(const at::Tensor& piece) {
  if (allocation_->is_done) return;
  const std::lock_guard lock(allocation_->mutex);
  if (allocation_->is_done) return;
  std::vector<int64_t> shape = piece.sizes().vec();
  is_scalar_ = shape.empty();
  if (num_pieces_ > 1) {
    if (is_scalar_) {
      shape = {num_pieces_};
    } else {
      shape[0] *= num_pieces_;
    }
  }
  const c10::InferenceMode as_of_the_call(is_inference_);
  // An extra allocation in the run of one micro-batch is allowed by its memory plan
  // (`ArenaPlan::may_end_at`).
  result_ = at::empty(shape, piece.options());
  allocation_->is_done = true;
}

}  // namespace poptorch_emu
