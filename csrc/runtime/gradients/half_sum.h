#pragma once

#include <ATen/core/Tensor.h>

#include "program/program.h"

namespace poptorch_emu {

// Returns a float16 accumulator after contribution `index` of its window. The contribution `value`
// is rounded to float16 and added in float32, and the sum is rounded again. `sum` is undefined
// before the first one. `rng` supplies the random bits for stochastic rounding.
at::Tensor add_in_half(const at::Tensor& sum, const at::Tensor& value,
                       const Accumulator& accumulator, AccumulatorId id, int64_t index,
                       const Numerics& numerics, const at::Tensor& rng);

// Adds a float16 contribution to a float32 sum in one pass, with the bits of a cast and an
// addition. Returns false without adding for other types, or unless both are contiguous.
bool add_half(const at::Tensor& value, const at::Tensor& sum);

}  // namespace poptorch_emu
