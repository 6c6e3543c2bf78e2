#pragma once

#include "ops/rnn_layer.h"

namespace poptorch_emu::rnn {

// Training of an LSTM in float32 without projection by blocks of rows of its batch.
//
// A block goes through all steps by itself, so that threads meet once a layer and not in each step.
// The bits do not depend on the number of threads.

// Whether a layer runs so when it is trained. Its shape and the processor decide, not the threads
// at hand; in inference oneDNN is faster.
bool runs_by_rows(const Layer& layer);

// The reserve is (T, N, 5 H): gates and cells, as of an LSTM by steps.
Results forward_by_rows(const Layer& layer);
Gradients backward_by_rows(const Layer& layer, const Results& results,
                           const ResultGradients& gradients, bool needs_input_gradient);

}  // namespace poptorch_emu::rnn
