// The gradients of an LSTM's weights are sums over all steps and rows, of far more values than
// results. Both sides are packed so that what is read together lies together.

#include "ops/lstm_gradients.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "common/sharing.h"
#include "ops/lstm_kernels.h"

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;

// So many values of so many panels of gates stay in a core's cache while panels of the other side
// go by. The bits depend on neither.
constexpr int64_t kDepth = 512;
constexpr int64_t kGatesAtOnce = 4;

// A gradient of some weights: (gates, columns), with whole panels of columns.
Tensor sums_for(const Panels& columns, const Panels& deltas, const at::TensorOptions& options) {
  return at::empty({deltas.size() * kPanel, columns.size() * kPanel}, options);
}

// sums = deltas' columns, for the panels of gates [from, to).
void multiply(const Panels& deltas, int64_t from, int64_t to, const Panels& columns,
              const Tensor& sums) {
  const int64_t stride = sums.size(1);
  float* const values = static_cast<float*>(sums.data_ptr());
  for (int64_t begin = 0; begin < deltas.depth(); begin += kDepth) {
    const int64_t depth = std::min(kDepth, deltas.depth() - begin);
    for (int64_t panel = 0; panel < columns.size(); ++panel) {
      for (int64_t gate = from * kPanel; gate < to * kPanel; gate += kRows) {
        run_column_product(
            depth, /*adds=*/begin > 0,
            {deltas.row(gate / kPanel, begin) + gate % kPanel, columns.row(panel, begin),
             values + gate * stride + panel * kPanel, stride});
      }
    }
  }
}

}  // namespace

Panels::Panels(int64_t depth, int64_t width, const at::TensorOptions& options)
    : width_(width),
      data_(width % kPanel == 0
                ? at::empty({width / kPanel, depth, kPanel}, options)
                : at::zeros({(width + kPanel - 1) / kPanel, depth, kPanel}, options)),
      values_(data_.mutable_data_ptr<float>()) {}

void Panels::set_row(int64_t index, const float* values) {
  for (int64_t from = 0; from < width_; from += kPanel) {
    float* const to = values_ + from * data_.size(1) + index * kPanel;
    std::copy_n(values + from, std::min(kPanel, width_ - from), to);
  }
}

const float* Panels::row(int64_t panel, int64_t index) const {
  return values_ + (panel * data_.size(1) + index) * kPanel;
}

StepValues::StepValues(const Layer& layer)
    : inputs(layer.num_steps() * layer.batch_size(), layer.input.size(2), layer.input.options()),
      states(inputs.depth(), layer.hidden_size(), layer.input.options()),
      deltas(inputs.depth(), layer.w_hh().size(0), layer.input.options()) {}

void StepValues::set_row(int64_t index, const float* input, const float* state,
                         const float* delta) {
  inputs.set_row(index, input);
  states.set_row(index, state);
  deltas.set_row(index, delta);
}

std::vector<Tensor> weight_gradients(const Layer& layer, const StepValues& values) {
  const auto options = layer.input.options();
  const Tensor of_inputs = sums_for(values.inputs, values.deltas, options),
               of_states = sums_for(values.states, values.deltas, options),
               of_biases = at::empty({values.deltas.size(), kPanel}, options);
  share_out(values.deltas.size(), 1, [&](int64_t begin, int64_t end) {
    // What the calling thread has set does not reach the others.
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (int64_t from = begin; from < end; from += kGatesAtOnce) {
      const int64_t to = std::min(from + kGatesAtOnce, end);
      multiply(values.deltas, from, to, values.inputs, of_inputs);
      multiply(values.deltas, from, to, values.states, of_states);
    }
    for (int64_t gates = begin; gates < end && layer.has_biases(); ++gates) {
      Tensor bias = of_biases[gates];
      at::sum_out(bias, values.deltas.panel(gates), 0);
    }
  });
  const Tensor w_ih = of_inputs.narrow(1, 0, layer.input.size(2)).contiguous();
  if (!layer.has_biases()) return {w_ih, of_states};
  const Tensor biases = of_biases.flatten();
  return {w_ih, of_states, biases, biases.clone()};
}

}  // namespace poptorch_emu::rnn
