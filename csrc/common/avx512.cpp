#include "common/avx512.h"

#include <ATen/Version.h>

namespace poptorch_emu::avx512 {

bool is_used() {
#if POPTORCH_EMU_COMPILES_AVX512
  static const bool is_used =
      __builtin_cpu_supports("x86-64-v4") != 0 && at::get_cpu_capability() == "AVX512";
  return is_used;
#else
  return false;
#endif
}

}  // namespace poptorch_emu::avx512
