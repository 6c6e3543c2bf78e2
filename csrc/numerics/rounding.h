#pragma once

#include <c10/util/Half.h>

#include <cstdint>

// Stochastic rounding from float32 to float16. Each of the two neighbours of a number is chosen
// with a probability such that the expected result is the number itself.

namespace poptorch_emu {

// Rounds each number with 32 random bits. Exact float16 numbers stay unchanged. NaN is rounded to
// nearest (IEEE), and so are numbers above the largest float16, because the unbiased choice would
// be infinite.
void round_stochastic(const float* from, const uint32_t* words, int64_t count, c10::Half* to);

}  // namespace poptorch_emu
