#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"
#include "runtime/collector.h"

namespace poptorch_emu {

// When one piece of an input or output began to cross between host and device, and when it had.
struct Span {
  int64_t start_ns;
  int64_t end_ns;
};

// When everything crossed in the last call: by input or output one span for each piece,
// micro-batch by micro-batch with the replica innermost. What nobody notes has crossed when the
// call begins.
//
// Not synchronised: each piece is noted by one action only.
class Crossings {
 public:
  void begin_call(size_t num_inputs, int64_t num_pieces,
                  const std::vector<OutputCollector>& outputs);

  // What began at `start_ns` and is over now.
  void note_input(InputId id, int64_t piece, int64_t start_ns);
  void note_output(OutputId id, int64_t piece, int64_t start_ns);

  const std::vector<std::vector<Span>>& inputs() const { return inputs_; }
  const std::vector<std::vector<Span>>& outputs() const { return outputs_; }

 private:
  std::vector<std::vector<Span>> inputs_;
  std::vector<std::vector<Span>> outputs_;
};

}  // namespace poptorch_emu
