#include "runtime/executor/transfer_times.h"

#include "common/clock.h"

namespace poptorch_emu {

void TransferTimes::begin_call(size_t num_inputs, int64_t num_pieces,
                               const std::vector<OutputCollector>& outputs) {
  const int64_t now = now_ns();
  now_ = std::make_shared<Spans>();
  now_->inputs.assign(num_inputs, std::vector<Span>(num_pieces, Span{now, now}));
  for (const OutputCollector& output : outputs) {
    now_->outputs.emplace_back(output.num_pieces(), Span{now, now});
  }
}

void TransferTimes::end_call() {
  const std::lock_guard lock(mutex_);
  last_ = std::move(now_);
}

std::shared_ptr<const Spans> TransferTimes::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void TransferTimes::note_input(InputId id, int64_t piece, int64_t start_ns) {
  now_->inputs[id.value][piece] = {start_ns, now_ns()};
}

void TransferTimes::note_output(OutputId id, int64_t piece, int64_t start_ns) {
  now_->outputs[id.value][piece] = {start_ns, now_ns()};
}

}  // namespace poptorch_emu
