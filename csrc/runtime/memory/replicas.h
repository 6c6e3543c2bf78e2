#pragma once

#include <cstdint>

namespace poptorch_emu {

// The replicas of this process among those of all, which are numbered process by process.
struct Replicas {
  int64_t here = 1;   // how many this process has
  int64_t first = 0;  // the number of its first one
  int64_t all = 1;    // how many there are
};

}  // namespace poptorch_emu
