#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "runtime/executor/output_collector.h"

namespace poptorch_emu {

// Start and end of the transfer of one piece between host and device, in nanoseconds.
using Span = std::pair<int64_t, int64_t>;

// One span for each piece of each input or output, in the order of micro-batches, then replicas.
struct Spans {
  std::vector<std::vector<Span>> inputs = {};
  std::vector<std::vector<Span>> outputs = {};
};

// The times of all transfers of a call. A piece without a transfer has the start time of the call.
//
// Any thread may call `last`. The rest is not synchronised, because one action notes each piece.
class TransferTimes {
 public:
  void begin_call(size_t num_inputs, int64_t num_pieces,
                  const std::vector<OutputCollector>& outputs);
  void end_call();

  // Notes a transfer that began at `start_ns` and ends now.
  void note_input(InputId id, int64_t piece, int64_t start_ns);
  void note_output(OutputId id, int64_t piece, int64_t start_ns);

  // Returns the times of the last call that has ended.
  std::shared_ptr<const Spans> last() const;

 private:
  std::shared_ptr<Spans> now_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Spans> last_ = std::make_shared<const Spans>();  // under `mutex_`
};

}  // namespace poptorch_emu
