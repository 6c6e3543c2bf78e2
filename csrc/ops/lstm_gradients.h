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
  int64_t depth() const { return data_.size(1); }
  at::Tensor panel(int64_t index) const { return data_[index]; }
  const float* row(int64_t panel, int64_t index) const;

 private:
  const int64_t width_;
  const at::Tensor data_;
  float* const values_;
};

// What the gradients of a layer's weights are made of, for each row of each step: what came in,
// (T N, I) and (T N, H), and the gradients of what entered the gates, (T N, 4 H).
struct StepValues {
  explicit StepValues(const Layer& layer);
  void set_row(int64_t index, const float* input, const float* state, const float* delta);

  Panels inputs;
  Panels states;
  Panels deltas;
};

// The gradients of w_ih, w_hh and, where there are biases, of these. Bits do not depend on the
// number of threads.
std::vector<at::Tensor> weight_gradients(const Layer& layer, const StepValues& values);

}  // namespace poptorch_emu::rnn
