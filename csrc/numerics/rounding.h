#pragma once

#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>

// Stochastic rounding from float32 to float16: of the two neighbours of a number, each is taken
// with a probability that makes the expected result the number itself.

namespace poptorch_emu {

// Numbers of the two formats: a float16 has 13 bits of mantissa less than a float32, and below
// 2^-14 all float16 are multiples of 2^-24.
inline constexpr uint32_t kDroppedBits = 13;
inline constexpr uint32_t kDroppedMask = (1u << kDroppedBits) - 1;
inline constexpr float kSmallestNormalHalf = 0x1p-14f;
inline constexpr float kHalfStepBelowNormal = 0x1p-24f;
inline constexpr float kLargestHalf = 65504.0f;

// Returns `value` rounded by the 32 random bits of `word`. A number that float16 has is returned as
// it is. Beyond the largest float16, where an unbiased choice would be infinite, and for NaN, this
// is IEEE rounding to nearest.
inline c10::Half round_stochastic(float value, uint32_t word) {
  const float magnitude = std::abs(value);
  if (!(magnitude <= kLargestHalf)) return c10::Half(value);
  if (magnitude < kSmallestNormalHalf) {
    const float steps = magnitude / kHalfStepBelowNormal;  // Exact: a change of the exponent.
    const float below = std::floor(steps);
    const bool is_up = static_cast<double>(word) * 0x1p-32 < static_cast<double>(steps - below);
    return c10::Half(std::copysign((below + (is_up ? 1.0f : 0.0f)) * kHalfStepBelowNormal, value));
  }
  // Adding random bits below the kept ones carries into them just as often as it should.
  const uint32_t bits = std::bit_cast<uint32_t>(value) + (word & kDroppedMask);
  return c10::Half(std::bit_cast<float>(bits & ~kDroppedMask));
}

}  // namespace poptorch_emu
