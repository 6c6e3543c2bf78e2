#pragma once

#include <cstdint>

// For inner loops that are compiled for processors with AVX-512 or AVX2 whatever the others are
// compiled for. A caller of a function with one of the two attributes asks `vectors::width` before.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#include <immintrin.h>
#define POPTORCH_EMU_COMPILES_VECTORS 1
#define POPTORCH_EMU_AVX512 __attribute__((target("arch=x86-64-v4")))
#define POPTORCH_EMU_AVX2 __attribute__((target("arch=x86-64-v3")))
#define POPTORCH_EMU_IS_AMD (__builtin_cpu_is("amd") != 0)
#else
#define POPTORCH_EMU_COMPILES_VECTORS 0
#define POPTORCH_EMU_AVX512
#define POPTORCH_EMU_AVX2
#define POPTORCH_EMU_IS_AMD false
#endif

// What is inlined is compiled for the processors of its caller.
#define POPTORCH_EMU_INLINE inline __attribute__((always_inline))

namespace poptorch_emu::vectors {

// Bits of a vector that kernels of ours have been compiled for: 512 with AVX-512, 256 with AVX2, or
// 0. The processor has it, and PyTorch uses it: what has its kernels take narrower vectors
// (`ATEN_CPU_CAPABILITY` in the environment) has ours take them, too.
int64_t width();

// As many numbers as a register has, anywhere in memory. (As an argument of a template such a type
// loses its attributes.)
struct Avx512 {
  using Vector = float __attribute__((vector_size(64), aligned(4), may_alias));
};
struct Avx2 {
  using Vector = float __attribute__((vector_size(32), aligned(4), may_alias));
};

#pragma GCC push_options
#pragma GCC optimize("O3")

// Calls `run`, which is to be inlined, in code that is compiled for vectors of such a width. What
// is inlined is optimised as this is, however the file that it comes from is.
template <class Run>
POPTORCH_EMU_AVX512 void run_for(Avx512, const Run& run) {
  run();
}
template <class Run>
POPTORCH_EMU_AVX2 void run_for(Avx2, const Run& run) {
  run();
}

#pragma GCC pop_options

// How a kernel that is compiled for either has its numbers.
template <class Width>
struct Registers {
  using Vector = typename Width::Vector;
  static constexpr int64_t kLanes = sizeof(Vector) / sizeof(float);
  static_assert(alignof(Vector) == alignof(float) && kLanes > 1);

  POPTORCH_EMU_INLINE static Vector& at(float* from) { return *reinterpret_cast<Vector*>(from); }
  POPTORCH_EMU_INLINE static const Vector& at(const float* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
};

}  // namespace poptorch_emu::vectors
