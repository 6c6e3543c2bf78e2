#include "runtime/heap.h"

#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace poptorch_emu {

void limit_heap_growth() {
#ifdef __GLIBC__
  // Below this size a tensor is too small for its hole to matter, and its page faults would cost.
  constexpr int kThresholdBytes = 1 << 20;
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, kThresholdBytes);
#endif
}

}  // namespace poptorch_emu
