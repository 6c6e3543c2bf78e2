#pragma once

#include <cstdint>
#include <vector>

namespace poptorch_emu {

// A piece of memory and when it is needed: from `birth` until before `death`.
struct Allocation {
  int64_t birth;
  int64_t death;
  int64_t num_bytes;
};

// Where pieces lie in one block of memory. Pieces that are needed at the same time share no byte.
struct OffsetPlan {
  std::vector<int64_t> offsets;  // by piece; multiples of 64 bytes
  int64_t num_bytes = 0;         // of the block
};

// Places the largest piece first, each where it fits most tightly among those that are needed at
// the same time. Source: greedy by size for offset calculation, https://arxiv.org/pdf/2001.03288.
OffsetPlan plan_offsets(const std::vector<Allocation>& pieces);

}  // namespace poptorch_emu
