// LSTM training by rows. The products with a step's rows use weights that are packed once for a
// sequence and stay in a core's cache. PyTorch computes products with many inputs and the gradient
// of the input. Gradients of weights, which are sums over all steps, use `numerics/gemm/product.h`.

#include "ops/lstm_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/sharing.h"
#include "common/teams.h"
#include "numerics/gemm/product.h"
#include "numerics/permuted_copy.h"
#include "ops/lstm_kernels.h"

namespace poptorch_emu::rnn {
namespace {

using at::Tensor;

constexpr int64_t kNumGates = 4;
// Maximum number of inputs for products by step. With more, one product for all steps is faster.
constexpr int64_t kMostInputs = 256;

// Converts (rows, columns) to (panels, rows, kPanel).
Tensor in_panels(const Tensor& matrix) {
  return permuted_copy(matrix.unflatten(1, {-1, kPanel}).transpose(0, 1));
}

// The rows of one block. Missing rows read zeros, and their results are discarded.
class Block {
 public:
  Block(int64_t first, int64_t num_rows, int64_t widest)
      : first_(first), num_rows_(std::min(kRows, num_rows - first)), nothing_(2 * widest) {}

  int64_t begin() const { return first_; }
  int64_t end() const { return first_ + num_rows_; }

  // Returns the start of each row; `row(n)` returns that of row n, and missing rows read zeros.
  template <class Row>
  std::array<const float*, kRows> rows(const Row& row) {
    std::array<const float*, kRows> all;
    for (int64_t k = 0; k < kRows; ++k) all[k] = k < num_rows_ ? row(first_ + k) : zeros();
    return all;
  }
  template <class Row>
  std::array<float*, kRows> sums(const Row& row) {
    std::array<float*, kRows> all;
    for (int64_t k = 0; k < kRows; ++k) all[k] = k < num_rows_ ? row(first_ + k) : thrown_away();
    return all;
  }

 private:
  float* zeros() { return nothing_.data(); }
  float* thrown_away() { return nothing_.data() + nothing_.size() / 2; }

  int64_t first_;
  int64_t num_rows_;
  std::vector<float> nothing_;
};

// Calls `run(block, member)` for each block of rows, on all available threads. With more threads
// than blocks, each thread computes some units of a block.
template <class Run>
void for_each_block(const Layer& layer, const Run& run) {
  const int64_t num_rows = layer.batch_size();
  const int64_t widest = std::max(kNumGates * layer.hidden_size(), layer.input.size(2));
  share_out_to_teams((num_rows + kRows - 1) / kRows, layer.hidden_size() / kPanel,
                     [&](int64_t index, const Member& member) {
                       run(Block(index * kRows, num_rows, widest), member);
                     });
}

// The hidden units that one member of a team computes, in whole panels.
struct Units {
  Units(const Member& member, int64_t hidden_size)
      : begin(member.begin_of(hidden_size / kPanel) * kPanel),
        end(member.end_of(hidden_size / kPanel) * kPanel) {}

  int64_t count() const { return end - begin; }

  const int64_t begin;
  const int64_t end;
};

// Computes the columns of some units of a product, which has `size` columns for each of its parts,
// for example for each gate.
void run_units(const Units& units, int64_t size, int64_t num_parts, int64_t depth,
               const float* panels, const RowProduct& rows) {
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t column = part * size + units.begin;
    RowProduct columns = rows;
    for (int64_t k = 0; k < kRows; ++k) {
      columns.start[k] += column;
      columns.sums[k] += column;
    }
    lstm_kernels()->run_product(depth, units.count() / kPanel, panels + column * depth, columns);
  }
}

// Addresses of the rows of a tensor (T, N, size), or (N, size) for one step.
class Rows {
 public:
  explicit Rows(const Tensor& values)
      : values_(static_cast<float*>(values.data_ptr())),
        num_rows_(values.size(-2)),
        size_(values.size(-1)) {}

  float* at(int64_t t, int64_t n) const { return values_ + (t * num_rows_ + n) * size_; }
  float* at(int64_t n) const { return at(0, n); }

 private:
  float* values_;
  int64_t num_rows_;
  int64_t size_;
};

// Addresses of each row's gates and cells in the reserve, and of the cells before a step.
class Saved {
 public:
  Saved(const Layer& layer, const Tensor& reserve)
      : layer_(layer),
        size_(layer.hidden_size()),
        c0_(layer.c0().contiguous()),
        initial_c_(c0_),
        rows_(reserve) {}

  float* gate(int64_t t, int64_t n, int64_t index) const { return rows_.at(t, n) + index * size_; }
  float* c(int64_t t, int64_t n) const { return gate(t, n, kNumGates); }
  // Returns the cells before step k.
  const float* previous_c(int64_t k, int64_t n) const {
    return k == 0 ? initial_c_.at(n) : c(layer_.row(k - 1), n);
  }

 private:
  const Layer& layer_;
  const int64_t size_;
  const Tensor c0_;
  const Rows initial_c_;
  const Rows rows_;
};

Tensor biases_of(const Layer& layer) {
  return layer.has_biases() ? layer.b_ih() + layer.b_hh()
                            : at::zeros({kNumGates * layer.hidden_size()}, layer.w_ih().options());
}

// Calls `run(narrowed)` for parts of some rows, on all available threads; `narrowed` narrows a
// tensor of that many rows. The parts do not depend on the threads, because the bits of a product
// on several threads may.
template <class Run>
void for_each_part(int64_t num_rows, const Run& run) {
  constexpr int64_t kParts = 4;
  share_out(kParts, 1, [&](int64_t begin, int64_t end) {
    // Set on each thread, because thread-local settings of the caller do not apply to others.
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (int64_t part = begin; part < end; ++part) {
      const int64_t from = part * num_rows / kParts, to = (part + 1) * num_rows / kParts;
      run([=](const Tensor& whole) { return whole.narrow(0, from, to - from); });
    }
  });
}

// Computes gates = biases + inputs w_ih', with many inputs for all rows, otherwise block by block.
class InputProduct {
 public:
  InputProduct(const Layer& layer, const Tensor& reserve)
      : layer_(layer), inputs_(layer.input), sums_(reserve), biases_(biases_of(layer)) {
    if (layer.input.size(2) <= kMostInputs) {
      panels_ = in_panels(layer.w_ih().t());
      return;
    }
    const Tensor inputs = layer.input.flatten(0, 1);
    const Tensor gates = reserve.flatten(0, 1).narrow(1, 0, biases_.size(0));
    for_each_part(gates.size(0), [&](const auto& part_of) {
      Tensor part = part_of(gates);
      at::addmm_out(part, biases_, part_of(inputs), layer.w_ih().t());
    });
  }

  void run(Block& block, const Units& units) const {
    if (!panels_.defined()) return;
    for (int64_t t = 0; t < layer_.num_steps(); ++t) {
      run_units(units, layer_.hidden_size(), kNumGates, layer_.input.size(2),
                panels_.const_data_ptr<float>(),
                {block.rows([&](int64_t n) { return inputs_.at(t, n); }),
                 block.rows([&](int64_t) { return biases_.const_data_ptr<float>(); }),
                 block.sums([&](int64_t n) { return sums_.at(t, n); })});
    }
  }

 private:
  const Layer& layer_;
  const Rows inputs_;
  const Rows sums_;
  const Tensor biases_;
  Tensor panels_;
};

Tensor input_gradient(const Layer& layer, const Tensor& deltas) {
  const Tensor gradient = at::empty({deltas.size(0), layer.input.size(2)}, deltas.options());
  for_each_part(deltas.size(0), [&](const auto& part_of) {
    Tensor part = part_of(gradient);
    at::mm_out(part, part_of(deltas), layer.w_ih());
  });
  return gradient.view(layer.input.sizes());
}

// Returns the gradients of w_ih and w_hh, and of the biases if there are any.
std::vector<Tensor> weight_gradients(const Layer& layer, const Tensor& output,
                                     const Tensor& deltas) {
  constexpr ProductKernel kKernel = ProductKernel::kPanels;
  const int64_t num_steps = layer.num_steps(), gates_size = deltas.size(2);
  const auto transposed = [](const Tensor& steps) { return steps.flatten(0, 1).t(); };
  Tensor of_inputs = at::empty({gates_size, layer.input.size(2)}, deltas.options());
  const Tensor all_deltas = transposed(deltas), all_inputs = layer.input.flatten(0, 1);
  Tensor of_biases;
  multiply({all_deltas, all_inputs, kKernel, layer.has_biases() ? &of_biases : nullptr},
           /*adds=*/false, of_inputs);
  // The gradient of w_hh starts with the first step, whose state is the initial state.
  Tensor of_states = at::empty({gates_size, layer.hidden_size()}, deltas.options());
  multiply({deltas[layer.row(0)].t(), layer.h0(), kKernel}, /*adds=*/false, of_states);
  if (num_steps > 1) {
    const int64_t from = layer.is_reverse ? 1 : 0, behind = 1 - from;
    const Tensor before = output.narrow(0, from, num_steps - 1).flatten(0, 1);
    multiply({transposed(deltas.narrow(0, behind, num_steps - 1)), before, kKernel},
             /*adds=*/true, of_states);
  }
  if (!layer.has_biases()) return {of_inputs, of_states};
  return {of_inputs, of_states, of_biases, of_biases.clone()};
}

}  // namespace

void check_by_rows(const Layer& layer) {
  const auto dtype = layer.input.scalar_type();
  TORCH_CHECK_VALUE(lstm_kernels() != nullptr && layer.mode == Mode::kLstm &&
                        !layer.has_projection() && layer.input.numel() > 0 &&
                        (dtype == at::kFloat || at::isReducedFloatingType(dtype)) &&
                        layer.hidden_size() % kPanel == 0,
                    "rnn_layer by rows needs vectors and a float32 or half LSTM without ",
                    "projection, with a multiple of ", kPanel, " hidden units; it has ",
                    layer.hidden_size(), ".");
}

Results forward_by_rows(const Layer& layer) {
  const OneThread alone(!shares_work());
  const int64_t num_steps = layer.num_steps(), num_rows = layer.batch_size(),
                size = layer.hidden_size(), gates_size = kNumGates * size;
  const auto options = layer.input.options();
  const Tensor reserve = at::empty({num_steps, num_rows, gates_size + size}, options);
  const Tensor output = at::empty({num_steps, num_rows, size}, options);

  const Tensor panels = in_panels(layer.w_hh().t());
  const Tensor h0 = layer.h0().contiguous();
  const Rows initial_h(h0), outputs(output);
  const InputProduct inputs(layer, reserve);
  const Saved saved(layer, reserve);
  for_each_block(layer, [&](Block block, const Member& member) {
    const Units units(member, size);
    inputs.run(block, units);
    for (int64_t k = 0; k < num_steps; ++k) {
      const int64_t t = layer.row(k);
      const auto previous_h = [&](int64_t n) {
        return k == 0 ? initial_h.at(n) : outputs.at(layer.row(k - 1), n);
      };
      const auto gate_row = [&](int64_t n) { return saved.gate(t, n, 0); };
      run_units(units, size, kNumGates, size, panels.const_data_ptr<float>(),
                {block.rows(previous_h), block.rows(gate_row), block.sums(gate_row)});
      for (int64_t n = block.begin(); n < block.end(); ++n) {
        const auto from = [&](float* row) { return row + units.begin; };
        lstm_kernels()->run_cell(
            units.count(),
            {from(saved.gate(t, n, 0)), from(saved.gate(t, n, 1)), from(saved.gate(t, n, 2)),
             from(saved.gate(t, n, 3)), saved.previous_c(k, n) + units.begin, from(saved.c(t, n)),
             from(outputs.at(t, n))});
      }
      // Wait for all members, because the next step reads all units.
      member.meet();
    }
  });
  const int64_t last = layer.row(num_steps - 1);
  return {output, output[last].clone(), reserve[last].narrow(1, gates_size, size).contiguous(),
          reserve};
}

Gradients backward_by_rows(const Layer& layer, const Results& results,
                           const ResultGradients& gradients, bool needs_input_gradient) {
  const OneThread alone(!shares_work());
  const int64_t num_steps = layer.num_steps(), num_rows = layer.batch_size(),
                size = layer.hidden_size(), gates_size = kNumGates * size;
  const auto options = results.reserve.options();
  // Gradients of the sums that entered the gates, row by row.
  const Tensor deltas = at::empty({num_steps, num_rows, gates_size}, options);
  const Tensor panels = in_panels(layer.w_hh());
  const Tensor grad_c = gradients.c.clone(at::MemoryFormat::Contiguous);
  // `grad_h` starts with the gradient of the last state and ends with that of the initial state.
  const bool has_outputs = gradients.output.defined();
  const Tensor grad_h = has_outputs ? gradients.h + gradients.output[layer.row(num_steps - 1)]
                                    : gradients.h.clone(at::MemoryFormat::Contiguous);
  const Tensor zeros = at::zeros({1, size}, grad_h.options());
  const Rows h(grad_h), c(grad_c), d(deltas), nothing(zeros);
  const Rows outputs(has_outputs ? gradients.output : zeros);
  const Saved saved(layer, results.reserve);
  for_each_block(layer, [&](Block block, const Member& member) {
    const Units units(member, size);
    for (int64_t k = num_steps - 1; k >= 0; --k) {
      const int64_t t = layer.row(k);
      for (int64_t n = block.begin(); n < block.end(); ++n) {
        const auto from = [&](float* row) { return row + units.begin; };
        float* const gates = from(d.at(t, n));
        lstm_kernels()->run_cell_backward(
            units.count(),
            {from(saved.gate(t, n, 0)), from(saved.gate(t, n, 1)), from(saved.gate(t, n, 2)),
             from(saved.gate(t, n, 3)), saved.previous_c(k, n) + units.begin, from(saved.c(t, n)),
             from(h.at(n)), from(c.at(n)), gates, gates + size, gates + 2 * size,
             gates + 3 * size});
      }
      // Wait for all members, because the gradient of the state reads all units.
      member.meet();
      const auto from_output = [&](int64_t n) {
        return k == 0 || !has_outputs ? nothing.at(0) : outputs.at(layer.row(k - 1), n);
      };
      run_units(units, size, /*num_parts=*/1, gates_size, panels.const_data_ptr<float>(),
                {block.rows([&](int64_t n) { return d.at(t, n); }), block.rows(from_output),
                 block.sums([&](int64_t n) { return h.at(n); })});
    }
  });

  Gradients all;
  if (needs_input_gradient) all.input = input_gradient(layer, deltas.flatten(0, 1));
  all.state = {grad_h, grad_c};
  all.weights = weight_gradients(layer, results.output, deltas);
  return all;
}

}  // namespace poptorch_emu::rnn
