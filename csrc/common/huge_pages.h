#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace poptorch_emu {

// Asks for larger pages below memory that is not written yet, where it has room for some:
// scattered reads wait less for the addresses of pages. The system may say no.
inline void prefer_huge_pages(void* begin, int64_t num_bytes) {
  constexpr uintptr_t kPageBytes = 4096;
  constexpr int64_t kFewestBytes = int64_t{1} << 22;
  if (num_bytes < kFewestBytes) return;
  const auto place = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (place + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t end = (place + static_cast<uintptr_t>(num_bytes)) / kPageBytes * kPageBytes;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace poptorch_emu
