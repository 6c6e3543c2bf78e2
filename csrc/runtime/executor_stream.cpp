// The part of the executor that hands out results while a call runs.

#include "common/errors.h"
#include "runtime/executor.h"

namespace poptorch_emu {

void Executor::begin_stream(int64_t max_unread, int64_t micro_batches_per_step,
                            int64_t num_outputs) {
  const auto available = static_cast<int64_t>(program_->outputs.size());
  if (max_unread < 1 || micro_batches_per_step < 1) {
    throw Error("A stream holds at least 1 result, of at least 1 micro-batch.");
  }
  if (num_outputs < 1 || num_outputs > available) {
    throw Error("A stream of " + std::to_string(num_outputs) +
                " outputs was asked for, but the program has " + std::to_string(available) +
                "; at least 1 is needed.");
  }
  for (int64_t id = 0; id < num_outputs; ++id) {
    if (program_->outputs[id].mode != OutputMode::kAll || is_window_output_[id]) {
      throw Error("Output " + std::to_string(id) +
                  " cannot be streamed: it must have the mode All and come from micro-batches.");
    }
  }
  std::lock_guard lock(mutex_);
  stream_ = std::make_unique<ResultStream>(max_unread, micro_batches_per_step, num_outputs);
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
    const auto* target = std::get_if<StoreOutput>(&item.target);
    if (target == nullptr || target->output.value >= stream_->num_outputs()) continue;
    if (!stream_->add_piece(micro_batch)) continue;
    const int64_t count = stream_->micro_batches_per_step();
    std::vector<at::Tensor> result;
    for (int64_t id = 0; id < stream_->num_outputs(); ++id) {
      result.push_back(outputs_[id].rows(stream_->step_of(micro_batch) * count, count));
    }
    stream_->push(std::move(result));
    result_ready_.notify_all();
  }
}

void Executor::begin_stream_of_call(int64_t num_micro_batches) {
  std::lock_guard lock(mutex_);
  if (!stream_) return;
  const int64_t per_step = stream_->micro_batches_per_step();
  if (num_micro_batches % per_step != 0) {
    throw Error("A call of " + std::to_string(num_micro_batches) +
                " micro-batches cannot be streamed in steps of " + std::to_string(per_step) +
                ", which must divide them.");
  }
  stream_->begin_call(num_micro_batches / per_step, options_.num_replicas);
}

void Executor::end_stream_of_call() {
  std::lock_guard lock(mutex_);
  if (stream_) stream_->end_call();
  result_ready_.notify_all();
}

}  // namespace poptorch_emu
