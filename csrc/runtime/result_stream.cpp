#include "runtime/result_stream.h"

#include <utility>

namespace poptorch_emu {

void ResultStream::begin_call(int64_t num_steps, int64_t num_replicas) {
  num_pieces_.assign(num_steps, 0);
  pieces_per_step_ = num_outputs_ * num_replicas * micro_batches_per_step_;
}

bool ResultStream::add_piece(int64_t micro_batch) {
  return ++num_pieces_[step_of(micro_batch)] == pieces_per_step_;
}

std::vector<at::Tensor> ResultStream::pop() {
  if (unread_.empty()) return {};
  std::vector<at::Tensor> result = std::move(unread_.front());
  unread_.pop_front();
  return result;
}

}  // namespace poptorch_emu
