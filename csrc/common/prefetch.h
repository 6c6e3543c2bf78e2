#pragma once

#include <cstdint>

namespace poptorch_emu {

// Has the processor fetch some bytes that are read later, where it cannot guess them.
inline void prefetch(const void* begin, int64_t num_bytes) {
  constexpr int64_t kLine = 64;
  const auto* const bytes = static_cast<const char*>(begin);
  for (int64_t at = 0; at < num_bytes; at += kLine) __builtin_prefetch(bytes + at);
}

}  // namespace poptorch_emu
