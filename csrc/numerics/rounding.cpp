#include "numerics/rounding.h"

#include <algorithm>
#include <bit>

#include "common/for_each_cpu.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {
namespace {

// A float16 has 13 mantissa bits fewer than a float32, and an exponent whose bias is 112 less.
constexpr uint32_t kMantissaBits = 23;
constexpr uint32_t kHiddenBit = 1U << kMantissaBits;
constexpr uint32_t kDroppedBits = 13;
constexpr uint32_t kDroppedMask = (1U << kDroppedBits) - 1;
constexpr uint32_t kBiases = 112U << kMantissaBits;
// The exponent of a float32 whose mantissa, as an integer, counts steps of 2^-24.
constexpr uint32_t kExponentOfSteps = 126;
constexpr uint32_t kSignOfHalf = 0x8000;
// Magnitudes as bits of float32. Below the smallest normal float16, all float16 numbers are
// multiples of 2^-24. From the middle between 65504 and 65536 on, the nearest number is infinity.
constexpr uint32_t kSmallestNormal = std::bit_cast<uint32_t>(0x1p-14F);
constexpr uint32_t kLargest = std::bit_cast<uint32_t>(65504.0F);
constexpr uint32_t kNearestIsInfinite = std::bit_cast<uint32_t>(65520.0F);
constexpr uint32_t kInfinity = 0x7F800000;

// The bits of float16: the largest number, infinity and NaN.
constexpr uint32_t kHalfLargest = 0x7BFF;
constexpr uint32_t kHalfInfinity = 0x7C00;
constexpr uint32_t kHalfNan = 0x7E00;

// Chooses by bits, because a loop with a branch is not compiled for vectors.
inline uint32_t select(bool is_first, uint32_t first, uint32_t second) {
  const uint32_t mask = -static_cast<uint32_t>(is_first);
  return (first & mask) | (second & ~mask);
}

// Random bits below the kept ones carry into the kept bits with the required probability.
inline uint32_t round_normal(uint32_t magnitude, uint32_t word) {
  return (magnitude + (word & kDroppedMask) - kBiases) >> kDroppedBits;
}

// Counts in steps of 2^-24, so that a smaller exponent drops more bits of the mantissa. Those that
// would need more than 31 random bits are cut off first.
inline uint32_t round_below_normal(uint32_t magnitude, uint32_t word) {
  const uint32_t mantissa = (magnitude & (kHiddenBit - 1)) | kHiddenBit;
  const uint32_t dropped = kExponentOfSteps - (magnitude >> kMantissaBits);
  const uint32_t shift = std::min(dropped, 31U);
  const uint32_t kept = mantissa >> std::min(dropped - shift, 31U);
  return (kept + (word & ((1U << shift) - 1))) >> shift;
}

inline uint32_t round_to_nearest(uint32_t magnitude) {
  return select(magnitude > kInfinity, kHalfNan,
                select(magnitude < kNearestIsInfinite, kHalfLargest, kHalfInfinity));
}

}  // namespace

POPTORCH_EMU_FOR_EACH_CPU void round_stochastic(const float* __restrict from,
                                                const uint32_t* __restrict words, int64_t count,
                                                c10::Half* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    const uint32_t number =
        select(magnitude < kSmallestNormal, round_below_normal(magnitude, words[i]),
               round_normal(magnitude, words[i]));
    const uint32_t rounded = select(magnitude > kLargest, round_to_nearest(magnitude), number);
    to[i].x = static_cast<uint16_t>((bits >> 16 & kSignOfHalf) | rounded);
  }
}

}  // namespace poptorch_emu

#pragma GCC pop_options
