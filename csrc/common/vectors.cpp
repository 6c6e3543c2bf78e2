#include "common/vectors.h"

#include <ATen/Version.h>

namespace poptorch_emu::vectors {
namespace {

int64_t widest() {
#if POPTORCH_EMU_COMPILES_VECTORS
  const auto used = at::get_cpu_capability();
  if (used == "AVX512" && __builtin_cpu_supports("x86-64-v4") != 0) return 512;
  // AVX-512 is not enough for our 512-bit kernels, which require more extensions than PyTorch's.
  if ((used == "AVX512" || used == "AVX2") && __builtin_cpu_supports("x86-64-v3") != 0) return 256;
#endif
  return 0;
}

}  // namespace

int64_t width() {
  static const int64_t width = widest();
  return width;
}

}  // namespace poptorch_emu::vectors
