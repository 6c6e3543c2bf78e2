#include "runtime/executor/result_stream.h"

#include <algorithm>
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
  forget_steps();
}

void ResultStream::begin_call(int64_t num_micro_batches, int64_t num_replicas) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;
  if (num_micro_batches % micro_batches_per_step_ != 0) {
    throw Error("A call of " + std::to_string(num_micro_batches) +
                " micro-batches cannot be streamed in steps of " +
                std::to_string(micro_batches_per_step_) + ", which must divide them.");
  }
  forget_steps();
  num_pieces_.assign(num_micro_batches / micro_batches_per_step_, 0);
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
  const int64_t num_before = num_steps_made_, num_steps = static_cast<int64_t>(num_pieces_.size());
  while (num_steps_made_ < num_steps && num_pieces_[num_steps_made_] == pieces_per_step_)
    ++num_steps_made_;
  if (num_steps_made_ == num_before) return;
  for (int64_t id = static_cast<int64_t>(results_.size()); id < num_outputs_; ++id) {
    const bool is_one = pieces_per_step_ == num_outputs_ && outputs[id].has_numbers();
    results_.push_back({outputs[id].so_far(), is_one});
  }
  progress_.notify_all();
}

bool ResultStream::is_full() const {
  if (!is_open_) return false;
  const std::lock_guard lock(mutex_);
  return is_open_ && num_unread() >= max_unread_;
}

bool ResultStream::is_too_early(int64_t micro_batch, int64_t num_workers) const {
  if (!is_open_) return false;
  const std::lock_guard lock(mutex_);
  if (!is_open_) return false;
  // Each worker may work on one step while the maximum number of results waits.
  return micro_batch / micro_batches_per_step_ >= num_taken_ + max_unread_ + num_workers - 1;
}

std::vector<at::Tensor> ResultStream::take() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return is_at_end() || num_unread() > 0; });
  std::vector<at::Tensor> result = next(std::min<int64_t>(num_unread(), 1)).second;
  for (at::Tensor& output : result) output = output.select(0, 0);
  return result;
}

TakenResults ResultStream::take_all() {
  const std::lock_guard lock(mutex_);
  return next(num_unread());
}

TakenResults ResultStream::wait_for_all(std::chrono::microseconds linger) {
  std::unique_lock lock(mutex_);
  end_.wait_for(lock, linger, [this] { return is_at_end(); });
  progress_.wait(lock, [this] { return is_at_end() || num_unread() > 0; });
  return next(num_unread());
}

TakenResults ResultStream::next(int64_t count) {
  std::vector<at::Tensor> taken;
  if (count == 0) return {0, taken};
  const int64_t num_steps = static_cast<int64_t>(num_pieces_.size());
  for (const auto& [all, is_number] : results_) {
    // A single step has the shape of the whole result, whatever that is.
    at::Tensor rows = num_steps == 1 ? all.unsqueeze(0) : all;
    if (num_steps > 1) {
      const int64_t size = all.size(0) / num_steps;
      rows = all.narrow(0, num_taken_ * size, count * size);
      if (!is_number) rows = rows.unflatten(0, {count, size});
    }
    taken.push_back(std::move(rows));
  }
  num_taken_ += count;
  return {count, std::move(taken)};
}

void ResultStream::forget_steps() {
  num_steps_made_ = num_taken_ = 0;
  results_.clear();
}

void ResultStream::end() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  forget_steps();
  progress_.notify_all();
  end_.notify_all();
}

}  // namespace poptorch_emu
