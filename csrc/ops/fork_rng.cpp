// Gives each iteration of a loop its own random stream.

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "numerics/philox.h"

namespace poptorch_emu {
namespace {

// Returns the state `rng` with a seed that depends on the old seed and the iteration; micro-batch
// and replica stay the same. Nested loops fork again.
at::Tensor fork_rng(const at::Tensor& rng, const at::Tensor& iteration) {
  at::Tensor forked = rng.clone();
  int64_t* state = forked.mutable_data_ptr<int64_t>();
  const auto seed = static_cast<uint64_t>(state[0]);
  const auto number = static_cast<uint64_t>(iteration.item<int64_t>());
  // No operation has the number 2^32 - 1, so that no operation's stream contains these words.
  const philox::Words words = philox::philox4x32(
      {static_cast<uint32_t>(number), UINT32_MAX, static_cast<uint32_t>(number >> 32), 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  state[0] = static_cast<int64_t>(words[0] | uint64_t{words[1]} << 32);
  return forked;
}

at::Tensor fork_rng_meta(const at::Tensor& rng, const at::Tensor&) { return at::empty_like(rng); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("fork_rng(Tensor rng, Tensor iteration) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("fork_rng", fork_rng); }
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("fork_rng", fork_rng_meta); }

}  // namespace poptorch_emu
