#pragma once

#include <cstdint>

namespace poptorch_emu {

// Has the processor fetch some bytes that are read later, where it does not guess them: into its
// first cache, or into its second one, so that what is in the first stays there.
template <int kCache = 1>
inline void prefetch(const void* begin, int64_t num_bytes) {
  constexpr int64_t kLine = 64;
  constexpr int kLocality = 4 - kCache;
  const auto* const bytes = static_cast<const char*>(begin);
  for (int64_t at = 0; at < num_bytes; at += kLine) {
    __builtin_prefetch(bytes + at, /*rw=*/0, kLocality);
  }
}

// The same for bytes that are written, so that no other core keeps them.
inline void prefetch_to_write(const void* begin, int64_t num_bytes) {
  constexpr int64_t kLine = 64;
  const auto* const bytes = static_cast<const char*>(begin);
  for (int64_t at = 0; at < num_bytes; at += kLine) {
#if defined(__x86_64__)
    // The compiler has it for some processors only; all others take it for nothing.
    asm volatile("prefetchw %0" : : "m"(bytes[at]));
#else
    __builtin_prefetch(bytes + at, /*rw=*/1);
#endif
  }
}

}  // namespace poptorch_emu
