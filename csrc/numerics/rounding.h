#pragma once

#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>

// Stochastic rounding from float32 to float16. Each of the two neighbours of a number is chosen
// with a probability such that the expected result is the number itself.

namespace poptorch_emu {

// Properties of the two formats: a float16 has 13 mantissa bits fewer than a float32, and below
// 2^-14 all float16 numbers are multiples of 2^-24.
inline constexpr uint32_t kDroppedBits = 13;
inline constexpr uint32_t kDroppedMask = (1u << kDroppedBits) - 1;
inline constexpr float kSmallestNormalHalf = 0x1p-14f;
inline constexpr float kHalfStepBelowNormal = 0x1p-24f;
inline constexpr float kLargestHalf = 65504.0f;

// Returns `value` rounded with the 32 random bits of `word`. Exact float16 numbers are returned
// unchanged. NaN is rounded to nearest (IEEE), and so are numbers above the largest float16,
// because the unbiased choice would be infinite.
inline c10::Half round_stochastic(float value, uint32_t word) {
  const float magnitude = std::abs(value);
  if (!(magnitude <= kLargestHalf)) return c10::Half(value);
  if (magnitude < kSmallestNormalHalf) {
    const float steps = magnitude / kHalfStepBelowNormal;  // exact: only the exponent changes
    const float below = std::floor(steps);
    const bool is_up = static_cast<double>(word) * 0x1p-32 < static_cast<double>(steps - below);
    return c10::Half(std::copysign((below + (is_up ? 1.0f : 0.0f)) * kHalfStepBelowNormal, value));
  }
  // Random bits below the kept ones carry into the kept bits with the required probability.
  const uint32_t bits = std::bit_cast<uint32_t>(value) + (word & kDroppedMask);
  return c10::Half(std::bit_cast<float>(bits & ~kDroppedMask));
}

}  // namespace poptorch_emu
