#include "numerics/philox.h"

#include "common/vectors.h"

namespace poptorch_emu::philox {
namespace {

#if POPTORCH_EMU_COMPILES_VECTORS

#pragma GCC push_options
#pragma GCC optimize("O3")

// Counters whose four words lie in the lower halves of 64-bit lanes. The upper halves hold the rest
// of products, which the next product ignores.
struct Lanes {
  __m256i word[4];
};

POPTORCH_EMU_AVX2 POPTORCH_EMU_INLINE Lanes round_of(const Lanes& from, __m256i key0,
                                                     __m256i key1) {
  const __m256i product0 =
      _mm256_mul_epu32(_mm256_set1_epi64x(static_cast<int64_t>(kMultiplier0)), from.word[0]);
  const __m256i product1 =
      _mm256_mul_epu32(_mm256_set1_epi64x(static_cast<int64_t>(kMultiplier1)), from.word[2]);
  const __m256i high0 = _mm256_srli_epi64(product0, 32);
  const __m256i high1 = _mm256_srli_epi64(product1, 32);
  return {_mm256_xor_si256(_mm256_xor_si256(high1, from.word[1]), key0), product1,
          _mm256_xor_si256(_mm256_xor_si256(high0, from.word[3]), key1), product0};
}

// Writes four counters, each with its four words side by side.
POPTORCH_EMU_AVX2 POPTORCH_EMU_INLINE void store(const Lanes& lanes, Words* to) {
  const __m256i low = _mm256_blend_epi32(lanes.word[0], _mm256_slli_epi64(lanes.word[1], 32), 0xAA);
  const __m256i high =
      _mm256_blend_epi32(lanes.word[2], _mm256_slli_epi64(lanes.word[3], 32), 0xAA);
  const __m256i even = _mm256_unpacklo_epi64(low, high);
  const __m256i odd = _mm256_unpackhi_epi64(low, high);
  auto* const out = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

POPTORCH_EMU_AVX2 void write_batch(const Words& first, Key key, Words* to) {
  constexpr int kLanes = 4;
  Lanes groups[kBatch / kLanes];  // Two, so that the products of one hide the latency of the other.
  for (int64_t i = 0; i < kBatch / kLanes; ++i) {
    const __m256i start = _mm256_set1_epi64x(int64_t{first[0]} + i * kLanes);
    groups[i] = {_mm256_add_epi64(start, _mm256_setr_epi64x(0, 1, 2, 3)),
                 _mm256_set1_epi64x(first[1]), _mm256_set1_epi64x(first[2]),
                 _mm256_set1_epi64x(first[3])};
  }
  for (int round = 0; round < kNumRounds; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(key[0]);
    const __m256i key1 = _mm256_set1_epi64x(key[1]);
    for (Lanes& group : groups) group = round_of(group, key0, key1);
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  for (int64_t i = 0; i < kBatch / kLanes; ++i) store(groups[i], to + i * kLanes);
}

#pragma GCC pop_options

#else

void write_batch(const Words&, const Key&, Words*) {}

#endif

}  // namespace

void write_words(Words first, const Key& key, std::span<Words> to) {
  const bool has_vectors = POPTORCH_EMU_COMPILES_VECTORS != 0 && vectors::width() >= 256;
  for (; has_vectors && std::ssize(to) >= kBatch; to = to.subspan(kBatch)) {
    write_batch(first, key, to.data());
    first[0] += kBatch;
  }
  for (Words& words : to) {
    words = philox4x32(first, key);
    ++first[0];
  }
}

}  // namespace poptorch_emu::philox
