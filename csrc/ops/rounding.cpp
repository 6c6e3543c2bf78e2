// Operator that rounds to float16 stochastically, with one random word for each element.

#include "numerics/rounding.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/random_stream.h"

namespace poptorch_emu {
namespace {

// Returns `values`, of any floating-point type, as float16.
at::Tensor round_tensor(const at::Tensor& rng, int64_t op_id, const at::Tensor& values) {
  const at::Tensor from = values.to(at::kFloat).contiguous();
  const at::Tensor out = at::empty_like(from, from.options().dtype(at::kHalf));
  if (out.is_meta()) return out;
  const float* in = from.const_data_ptr<float>();
  c10::Half* to = out.mutable_data_ptr<c10::Half>();
  for_each_batch<4>(RandomStream(rng, op_id), from.numel(),
                    [&](const auto& blocks, int64_t first, int64_t count) {
                      round_stochastic(in + first, blocks.data()->data(), count, to + first);
                    });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("round_stochastic(Tensor rng, int op_id, Tensor values) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("round_stochastic", round_tensor); }
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("round_stochastic", round_tensor); }

}  // namespace poptorch_emu
