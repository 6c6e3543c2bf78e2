// The gradients of an LSTM's weights are sums over all steps and rows, of far more values than
// results. Both sides are packed so that what is read together lies together.

#include "ops/lstm_gradients.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "common/sharing.h"
#include "ops/lstm_kernels.h"

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;

// So many gates are packed at once, and so many of their values: a core's cache holds them and a
// panel of the other side.
constexpr int64_t kGates = 32;
constexpr int64_t kDepth = 512;
static_assert(kGates % kRows == 0 && kPanel == kGates);  // A layer has whole panels of units.

// A gradient of some weights: (gates, columns), with whole panels of columns.
struct Sums {
  const Panels& side;
  const Tensor all = {};

  float* at(int64_t gate, int64_t panel) const {
    return static_cast<float*>(all.data_ptr()) + gate * all.size(1) + panel * kPanel;
  }
};

Sums sums_of(const Panels& side, const Tensor& deltas) {
  return {side, at::empty({deltas.size(1), side.size() * kPanel}, deltas.options())};
}

// Some gates of some rows of the deltas: (kGates / kRows, depth, kRows).
class Tile {
 public:
  Tile() : values_(kGates * kDepth) {}

  void pack(const Tensor& deltas, int64_t first_gate, int64_t begin, int64_t depth) {
    const int64_t num_gates = deltas.size(1);
    const float* from = deltas.const_data_ptr<float>() + begin * num_gates + first_gate;
    depth_ = depth;
    for (int64_t k = 0; k < depth; ++k, from += num_gates) {
      for (int64_t part = 0; part < kGates; part += kRows) {
        std::copy_n(from + part, kRows, values_.data() + part * depth + k * kRows);
      }
    }
  }

  // sums += tile' panel, from its row `begin` on.
  void multiply(const Sums& sums, int64_t first_gate, int64_t begin) const {
    for (int64_t panel = 0; panel < sums.side.size(); ++panel) {
      for (int64_t part = 0; part < kGates; part += kRows) {
        run_column_product(depth_, /*adds=*/begin > 0,
                           {values_.data() + part * depth_, sums.side.panel(panel, begin),
                            sums.at(first_gate + part, panel), sums.all.size(1)});
      }
    }
  }

 private:
  std::vector<float> values_;
  int64_t depth_ = 0;
};

// The sums of the gates [from, to), and those of the biases where they are defined.
void add_up(const Tensor& deltas, int64_t from, int64_t to, const Sums& inputs, const Sums& states,
            const Tensor& biases) {
  Tile tile;
  for (int64_t gate = from; gate < to; gate += kGates) {
    for (int64_t begin = 0; begin < deltas.size(0); begin += kDepth) {
      tile.pack(deltas, gate, begin, std::min(kDepth, deltas.size(0) - begin));
      tile.multiply(inputs, gate, begin);
      tile.multiply(states, gate, begin);
    }
    if (biases.defined()) {
      Tensor part = biases.narrow(0, gate, kGates);
      at::sum_out(part, deltas.narrow(1, gate, kGates), 0);
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

const float* Panels::panel(int64_t index, int64_t row) const {
  return values_ + (index * data_.size(1) + row) * kPanel;
}

StepInputs::StepInputs(const Layer& layer)
    : inputs(layer.num_steps() * layer.batch_size(), layer.input.size(2), layer.input.options()),
      states(layer.num_steps() * layer.batch_size(), layer.hidden_size(), layer.input.options()) {}

std::vector<Tensor> weight_gradients(const Layer& layer, const StepInputs& came_in,
                                     const Tensor& deltas) {
  const Sums inputs = sums_of(came_in.inputs, deltas), states = sums_of(came_in.states, deltas);
  const int64_t num_gates = deltas.size(1);
  const Tensor biases = layer.has_biases() ? at::empty({num_gates}, deltas.options()) : Tensor();
  share_out(num_gates / kGates, 1, [&](int64_t begin, int64_t end) {
    // What the calling thread has set does not reach the others.
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    add_up(deltas, begin * kGates, end * kGates, inputs, states, biases);
  });
  const Tensor w_ih = inputs.all.narrow(1, 0, layer.input.size(2)).contiguous();
  if (!layer.has_biases()) return {w_ih, states.all};
  return {w_ih, states.all, biases, biases.clone()};
}

}  // namespace poptorch_emu::rnn
