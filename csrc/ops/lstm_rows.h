#pragma once

#include "ops/rnn_layer.h"

namespace poptorch_emu::rnn {

// Training of a float32 LSTM without projection, by blocks of rows of the batch.
//
// Each block runs through all steps independently, so that threads synchronise once in each layer
// instead of in each step. The bits do not depend on the number of threads.

// Throws ValueError if the kernels cannot train a layer by rows.
void check_by_rows(const Layer& layer);

// The reserve is (T, N, 5 H): gates and cells, as for an LSTM by steps.
Results forward_by_rows(const Layer& layer);
Gradients backward_by_rows(const Layer& layer, const Results& results,
                           const ResultGradients& gradients, bool needs_input_gradient);

}  // namespace poptorch_emu::rnn
