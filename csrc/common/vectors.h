#pragma once

#include <cstdint>

// Attributes for inner loops that are compiled for AVX-512 or AVX2, whatever the flags of the file.
// A caller of a function with such an attribute must check `vectors::width` first.
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

// Forces inlining, so that a function is compiled for the processors of its caller.
#define POPTORCH_EMU_INLINE inline __attribute__((always_inline))

namespace poptorch_emu::vectors {

// Vector width in bits that our kernels may use: 512 (AVX-512), 256 (AVX2) or 0. It exceeds neither
// the processor's width nor that of PyTorch's kernels, which `ATEN_CPU_CAPABILITY` can reduce.
int64_t width();

// Structures with a vector type that fills one register and may have any address. A bare vector
// type would lose its attributes as a template argument.
struct Avx512 {
  using Vector = float __attribute__((vector_size(64), aligned(4), may_alias));
};
struct Avx2 {
  using Vector = float __attribute__((vector_size(32), aligned(4), may_alias));
};

#pragma GCC push_options
#pragma GCC optimize("O3")

// Calls `run`, inlined, in code that is compiled for vectors of one width. Inlined code is
// optimised with the options of this function, not of its own file.
template <class Run>
POPTORCH_EMU_AVX512 void run_for(Avx512, const Run& run) {
  run();
}
template <class Run>
POPTORCH_EMU_AVX2 void run_for(Avx2, const Run& run) {
  run();
}

#pragma GCC pop_options

// Reads and writes numbers as vectors, in kernels that are compiled for both widths.
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
