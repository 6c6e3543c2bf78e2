#pragma once

#include <array>
#include <cstdint>
#include <span>

// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). It is a bijection of 128-bit counters for each 64-bit key. It has no state,
// so that any thread can compute any part of a stream, also repeatedly.

namespace poptorch_emu::philox {

using Words = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

// Constants from table 2 of the paper: multipliers, then key increments.
inline constexpr uint64_t kMultiplier0 = 0xD2511F53;
inline constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9;
inline constexpr uint32_t kWeyl1 = 0xBB67AE85;
inline constexpr int kNumRounds = 10;

// Returns the four random words for `counter` under `key`.
[[gnu::always_inline]] constexpr Words philox4x32(Words counter, Key key) {
  for (int round = 0; round < kNumRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// Number of counters whose words vectors of AVX2 compute together.
inline constexpr int64_t kBatch = 8;

// Writes the words of consecutive counters, which begin with `first`, until `to` is full. Full
// batches are computed by vectors where the processor has them, with equal bits.
void write_words(Words first, const Key& key, std::span<Words> to);

}  // namespace poptorch_emu::philox
