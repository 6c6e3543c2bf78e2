#pragma once

#include <cstdint>

// For inner loops that are compiled for processors with AVX-512 whatever the others are compiled
// for. Who calls a function with POPTORCH_EMU_AVX512 asks `avx512::is_used` before.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#include <immintrin.h>
#define POPTORCH_EMU_COMPILES_AVX512 1
#define POPTORCH_EMU_AVX512 __attribute__((target("arch=x86-64-v4")))
#define POPTORCH_EMU_IS_AMD (__builtin_cpu_is("amd") != 0)
#else
#define POPTORCH_EMU_COMPILES_AVX512 0
#define POPTORCH_EMU_AVX512
#define POPTORCH_EMU_IS_AMD false
#endif

// What is inlined is compiled for the processors of its caller.
#define POPTORCH_EMU_INLINE inline __attribute__((always_inline))

namespace poptorch_emu::avx512 {

// Whether the processor has it, and PyTorch uses it: what has its kernels take narrower vectors
// (`ATEN_CPU_CAPABILITY` in the environment) has ours take them, too.
bool is_used();

// As many numbers as such a processor has in a register, anywhere in memory.
using Vector = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kLanes = sizeof(Vector) / sizeof(float);

POPTORCH_EMU_INLINE Vector& vector_at(float* from) { return *reinterpret_cast<Vector*>(from); }
POPTORCH_EMU_INLINE const Vector& vector_at(const float* from) {
  return *reinterpret_cast<const Vector*>(from);
}

}  // namespace poptorch_emu::avx512
