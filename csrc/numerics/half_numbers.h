#pragma once

#include <c10/util/Half.h>

#include <cstdint>

namespace poptorch_emu {

// Conversions of many float16 numbers, rounded to nearest. Arguments must not overlap, except that
// a number may be rounded in place.

void widen_halves(const c10::Half* from, int64_t count, float* to);
void narrow_to_halves(const float* from, int64_t count, c10::Half* to);
void round_to_half(const float* from, int64_t count, float* to);
void add_half_numbers(const c10::Half* values, int64_t count, float* sums);

}  // namespace poptorch_emu
