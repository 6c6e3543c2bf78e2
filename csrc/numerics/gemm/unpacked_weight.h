#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace poptorch_emu {

// Returns the weight (outputs, inputs) of which `packed` was made for so many rows (see
// `pack_weight`), bit for bit; a signalling NaN has become a quiet one. The library does not tell
// where it puts which number, but that can be found out: by packing others in the same memory,
// which are gone again afterwards. Nobody may read it meanwhile. It takes some five times the
// memory of the weight for that time.
at::Tensor unpack_weight(at::Tensor& packed, int64_t rows, int64_t num_outputs, int64_t num_inputs);

// Whether that works here for products of such sizes, which is tried once in a process.
bool can_unpack(int64_t rows, int64_t num_outputs, int64_t num_inputs);

}  // namespace poptorch_emu
