#pragma once

#include <chrono>
#include <cstdint>

namespace poptorch_emu {

// Returns the time of the steady clock in nanoseconds.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace poptorch_emu
