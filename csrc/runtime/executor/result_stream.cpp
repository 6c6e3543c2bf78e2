#include "runtime/executor/result_stream.h"

#include <iterator>
#include <string>
#include <utility>

#include "common/errors.h"

namespace poptorch_emu {

void ResultStream::begin(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs) {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  is_call_over_ = false;
  max_unread_ = max_unread;
  micro_batches_per_step_ = micro_batches_per_step;
  num_outputs_ = num_outputs;
  unread_.clear();
}

void ResultStream::begin_call(int64_t num_micro_batches, int64_t num_replicas) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;
  if (num_micro_batches % micro_batches_per_step_ != 0) {
    throw Error("A call of " + std::to_string(num_micro_batches) +
                " micro-batches cannot be streamed in steps of " +
                std::to_string(micro_batches_per_step_) + ", which must divide them.");
  }
  num_pieces_.assign(num_micro_batches / micro_batches_per_step_, 0);
  num_steps_made_ = 0;
  pieces_per_step_ = num_outputs_ * num_replicas * micro_batches_per_step_;
}

void ResultStream::end_call() {
  const std::lock_guard lock(mutex_);
  is_call_over_ = true;
  progress_.notify_all();
  end_.notify_all();
}

void ResultStream::add_pieces(const Segment& segment, int64_t micro_batch,
                              const std::vector<OutputCollector>& outputs) {
  if (!is_open_) return;
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;
  for (const Store& store : segment.stores) {
    const auto* target = std::get_if<StoreOutput>(&store.target);
    if (target != nullptr && target->output.value < num_outputs_) {
      for (int64_t piece = 0; piece < target->num_pieces; ++piece) {
        ++num_pieces_[(micro_batch + target->piece + piece) / micro_batches_per_step_];
      }
    }
  }
  for (; num_steps_made_ < static_cast<int64_t>(num_pieces_.size()); ++num_steps_made_) {
    if (num_pieces_[num_steps_made_] < pieces_per_step_) break;
    std::vector<at::Tensor> result;
    for (int64_t id = 0; id < num_outputs_; ++id) {
      const int64_t first = num_steps_made_ * micro_batches_per_step_;
      result.push_back(outputs[id].rows(first, micro_batches_per_step_));
    }
    unread_.push_back(std::move(result));
    progress_.notify_all();
  }
}

bool ResultStream::is_full() const {
  if (!is_open_) return false;
  const std::lock_guard lock(mutex_);
  return is_open_ && static_cast<int64_t>(unread_.size()) >= max_unread_;
}

bool ResultStream::is_too_early(int64_t micro_batch, int64_t num_workers) const {
  if (!is_open_) return false;
  const std::lock_guard lock(mutex_);
  if (!is_open_) return false;
  const int64_t num_taken = num_steps_made_ - static_cast<int64_t>(unread_.size());
  // Each worker may have a step in hand while the others wait to be read.
  return micro_batch / micro_batches_per_step_ >= num_taken + max_unread_ + num_workers - 1;
}

std::vector<at::Tensor> ResultStream::take() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return is_at_end() || !unread_.empty(); });
  if (unread_.empty()) return {};
  std::vector<at::Tensor> result = std::move(unread_.front());
  unread_.pop_front();
  return result;
}

std::vector<std::vector<at::Tensor>> ResultStream::take_all() {
  const std::lock_guard lock(mutex_);
  return all_unread();
}

std::vector<std::vector<at::Tensor>> ResultStream::wait_for_all(std::chrono::microseconds linger) {
  std::unique_lock lock(mutex_);
  end_.wait_for(lock, linger, [this] { return is_at_end(); });
  progress_.wait(lock, [this] { return is_at_end() || !unread_.empty(); });
  return all_unread();
}

std::vector<std::vector<at::Tensor>> ResultStream::all_unread() {
  std::vector<std::vector<at::Tensor>> results(std::make_move_iterator(unread_.begin()),
                                               std::make_move_iterator(unread_.end()));
  unread_.clear();
  return results;
}

void ResultStream::end() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  unread_.clear();
  progress_.notify_all();
  end_.notify_all();
}

}  // namespace poptorch_emu
