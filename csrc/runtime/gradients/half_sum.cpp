#include "runtime/gradients/half_sum.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "common/sharing.h"
#include "numerics/half_numbers.h"

namespace poptorch_emu {
namespace {

// First number for random operations of accumulators, which use two each. Operations of a graph and
// its updates have smaller numbers (passes/stochastic_rounding.py).
constexpr int64_t kFirstOp = int64_t{3} << 28;

at::Tensor round_stochastic(const at::Tensor& rng, int64_t op_id, const at::Tensor& values) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("poptorch_emu::round_stochastic", "")
                             .typed<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&)>();
  return op.call(rng, op_id, values);
}

}  // namespace

bool add_half(const at::Tensor& value, const at::Tensor& sum) {
  if (value.scalar_type() != at::kHalf || sum.scalar_type() != at::kFloat ||
      value.sizes() != sum.sizes() || !value.is_contiguous() || !sum.is_contiguous() ||
      value.is_neg() || sum.is_neg()) {
    return false;
  }
  // Below this number of elements a second thread costs more time than it saves.
  constexpr int64_t kGrain = 65536;
  const auto* const from = value.const_data_ptr<at::Half>();
  auto* const to = sum.mutable_data_ptr<float>();
  share_out(value.numel(), kGrain, [&](int64_t begin, int64_t end) {
    add_half_numbers(from + begin, end - begin, to + begin);
  });
  return true;
}

at::Tensor add_in_half(const at::Tensor& sum, const at::Tensor& value,
                       const Accumulator& accumulator, AccumulatorId id, int64_t index,
                       const Numerics& numerics, const at::Tensor& rng) {
  const auto rounded = [&](const at::Tensor& tensor, int64_t which) {
    return numerics.rounds_stochastically
               ? round_stochastic(rng, kFirstOp + 2 * id.value + which, tensor)
               : tensor.to(at::kHalf);
  };
  const at::Tensor contribution = rounded(value, 0);
  if (index == 0 || !sum.defined()) {
    return contribution.is_alias_of(value) ? contribution.clone() : contribution;
  }
  const at::Tensor wide = sum.to(at::kFloat);
  if (accumulator.is_running_mean) {
    return rounded(wide.lerp_(contribution.to(at::kFloat), 1.0 / (static_cast<double>(index) + 1)),
                   1);
  }
  return rounded(wide.add_(contribution.to(at::kFloat)), 1);
}

}  // namespace poptorch_emu
