#pragma once

#include <cstdint>

namespace poptorch_emu {

// Prefetches bytes whose address the processor cannot predict, to its first-level cache, or to the
// second level, so that data in the first level stays there.
template <int kCache = 1>
inline void prefetch(const void* begin, int64_t num_bytes) {
  constexpr int64_t kLine = 64;
  constexpr int kLocality = 4 - kCache;
  const auto* const bytes = static_cast<const char*>(begin);
  for (int64_t at = 0; at < num_bytes; at += kLine) {
    __builtin_prefetch(bytes + at, /*rw=*/0, kLocality);
  }
}

// Prefetches bytes that will be written, so that no other core keeps a copy.
inline void prefetch_to_write(const void* begin, int64_t num_bytes) {
  constexpr int64_t kLine = 64;
  const auto* const bytes = static_cast<const char*>(begin);
  for (int64_t at = 0; at < num_bytes; at += kLine) {
#if defined(__x86_64__)
    // The compiler supports `prefetchw` for some processors only; the others ignore it.
    asm volatile("prefetchw %0" : : "m"(bytes[at]));
#else
    __builtin_prefetch(bytes + at, /*rw=*/1);
#endif
  }
}

}  // namespace poptorch_emu
