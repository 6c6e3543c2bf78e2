#include "numerics/half_numbers.h"

#include "common/for_each_cpu.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace poptorch_emu {

POPTORCH_EMU_FOR_EACH_CPU void widen_halves(const c10::Half* __restrict from, int64_t count,
                                            float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

POPTORCH_EMU_FOR_EACH_CPU void narrow_to_halves(const float* __restrict from, int64_t count,
                                                c10::Half* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = c10::Half(from[i]);
}

POPTORCH_EMU_FOR_EACH_CPU void round_to_half(const float* from, int64_t count, float* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(c10::Half(from[i]));
}

POPTORCH_EMU_FOR_EACH_CPU void add_half_numbers(const c10::Half* __restrict values, int64_t count,
                                                float* __restrict sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<float>(values[i]);
}

}  // namespace poptorch_emu

#pragma GCC pop_options
