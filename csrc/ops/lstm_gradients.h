#pragma once

#include <vector>

#include "ops/rnn_layer.h"

namespace poptorch_emu::rnn {

// The columns of (depth, width) by panels, (panels, depth, kPanel); what is missing in the last
// panel is 0. Rows may be set by several threads, each by one of them.
class Panels {
 public:
  Panels(int64_t depth, int64_t width, const at::TensorOptions& options);

  void set_row(int64_t index, const float* values);
  int64_t size() const { return data_.size(0); }
  // From a row on.
  const float* panel(int64_t index, int64_t row) const;

 private:
  const int64_t width_;
  const at::Tensor data_;
  float* const values_;
};

// What came into the steps of a layer, (T N, I) and (T N, H), and so into its weights' gradients.
struct StepInputs {
  explicit StepInputs(const Layer& layer);
  void set_row(int64_t index, const float* input, const float* state) {
    inputs.set_row(index, input);
    states.set_row(index, state);
  }

  Panels inputs;
  Panels states;
};

// The gradients of w_ih, w_hh and, where there are biases, of these. `deltas` are the gradients of
// what enters the gates, (T N, 4 H). Bits do not depend on the number of threads.
std::vector<at::Tensor> weight_gradients(const Layer& layer, const StepInputs& came_in,
                                         const at::Tensor& deltas);

}  // namespace poptorch_emu::rnn
