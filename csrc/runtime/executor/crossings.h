#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/ids.h"
#include "runtime/executor/collector.h"

namespace poptorch_emu {

// When one piece of an input or output began to cross between host and device, and when it had.
struct Span {
  int64_t start_ns;
  int64_t end_ns;
};

// By input or output one span for each piece, micro-batch by micro-batch with the replica
// innermost.
struct Spans {
  std::vector<std::vector<Span>> inputs = {};
  std::vector<std::vector<Span>> outputs = {};
};

// When everything crossed. What nobody notes has crossed when the call begins.
//
// Any thread may ask for the last call. The rest is not synchronised: each piece is noted by one
// action only.
class Crossings {
 public:
  void begin_call(size_t num_inputs, int64_t num_pieces,
                  const std::vector<OutputCollector>& outputs);
  void end_call();

  // What began at `start_ns` and is over now.
  void note_input(InputId id, int64_t piece, int64_t start_ns);
  void note_output(OutputId id, int64_t piece, int64_t start_ns);

  // Of the last call that has ended.
  std::shared_ptr<const Spans> last() const;

 private:
  std::shared_ptr<Spans> now_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Spans> last_ = std::make_shared<const Spans>();  // guarded by `mutex_`
};

}  // namespace poptorch_emu
