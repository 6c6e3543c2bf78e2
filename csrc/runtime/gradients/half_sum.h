#pragma once

#include <ATen/core/Tensor.h>

#include "program/program.h"

namespace poptorch_emu {

// Returns a float16 accumulator after the contribution `value`, the `index`-th of its window: the
// contribution is rounded to float16, added in float32 and the sum rounded again. `sum` is
// undefined before the first. `rng` chooses the random bits where rounding is stochastic.
at::Tensor add_in_half(const at::Tensor& sum, const at::Tensor& value,
                       const Accumulator& accumulator, AccumulatorId id, int64_t index,
                       const Numerics& numerics, const at::Tensor& rng);

// Adds a contribution of float16 to a sum of float32 in one pass, with the bits of a cast and an
// addition. False, and nothing is added, where the types are others, or not both lie in order.
bool add_half(const at::Tensor& value, const at::Tensor& sum);

}  // namespace poptorch_emu
