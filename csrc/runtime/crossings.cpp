#include "runtime/crossings.h"

#include "common/clock.h"

namespace poptorch_emu {

void Crossings::begin_call(size_t num_inputs, int64_t num_pieces,
                           const std::vector<OutputCollector>& outputs) {
  const int64_t now = now_ns();
  inputs_.assign(num_inputs, std::vector<Span>(num_pieces, Span{now, now}));
  outputs_.clear();
  for (const OutputCollector& output : outputs) {
    outputs_.emplace_back(output.num_pieces(), Span{now, now});
  }
}

void Crossings::note_input(InputId id, int64_t piece, int64_t start_ns) {
  inputs_[id.value][piece] = {start_ns, now_ns()};
}

void Crossings::note_output(OutputId id, int64_t piece, int64_t start_ns) {
  outputs_[id.value][piece] = {start_ns, now_ns()};
}

}  // namespace poptorch_emu
