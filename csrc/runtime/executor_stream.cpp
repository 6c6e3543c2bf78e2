// The part of the executor that hands out results while a call runs.

#include "common/errors.h"
#include "runtime/executor.h"

namespace poptorch_emu {

void Executor::begin_stream(int64_t max_unread, int64_t micro_batches_per_step) {
  if (max_unread < 1 || micro_batches_per_step < 1) {
    throw Error("A stream holds at least 1 result, of at least 1 micro-batch.");
  }
  for (const Output& output : program_->outputs) {
    if (output.mode != OutputMode::kAll) {
      throw Error("Results can only be streamed when all outputs have the mode All.");
    }
  }
  std::lock_guard lock(mutex_);
  stream_ = std::make_unique<ResultStream>(max_unread, micro_batches_per_step);
}

std::vector<at::Tensor> Executor::take_result() {
  std::unique_lock lock(mutex_);
  result_ready_.wait(lock, [this] { return !stream_ || stream_->has_answer(); });
  std::vector<at::Tensor> result;
  if (stream_) result = stream_->pop();
  progress_.notify_all();
  return result;
}

void Executor::end_stream() {
  std::lock_guard lock(mutex_);
  stream_.reset();
  progress_.notify_all();
  result_ready_.notify_all();
}

bool Executor::is_paused() const { return stream_ && stream_->is_full(); }

void Executor::note_results(const VirtualIpu& ipu, const Action& action) {
  if (!stream_) return;
  const int64_t micro_batch = global_micro_batch(action);
  for (const Store& item : program_->at(action.segment).stores) {
    if (!std::holds_alternative<StoreOutput>(item.target)) continue;
    if (!stream_->add_piece(micro_batch)) continue;
    const int64_t count = stream_->micro_batches_per_step();
    std::vector<at::Tensor> result;
    for (const OutputCollector& output : outputs_) {
      result.push_back(output.rows(stream_->step_of(micro_batch) * count, count));
    }
    stream_->push(std::move(result));
    result_ready_.notify_all();
  }
}

void Executor::begin_stream_of_call(int64_t num_micro_batches) {
  std::lock_guard lock(mutex_);
  if (!stream_) return;
  const int64_t num_steps = num_micro_batches / stream_->micro_batches_per_step();
  const int64_t num_outputs = static_cast<int64_t>(outputs_.size());
  stream_->begin_call(num_steps, num_outputs * options_.num_replicas);
}

void Executor::end_stream_of_call() {
  std::lock_guard lock(mutex_);
  if (stream_) stream_->end_call();
  result_ready_.notify_all();
}

}  // namespace poptorch_emu
