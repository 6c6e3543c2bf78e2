#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/link_queue.h"

namespace poptorch_emu {

// One action on one IPU of one replica, with what its links gave and will get. It belongs to the
// worker that the scheduler gave it to, until that worker hands it back.
struct Task {
  int64_t replica = 0;
  int64_t ipu = 0;
  int64_t lane = 0;  // which frame of its segment runs it
  int64_t worker = 0;
  int64_t begun_ns = 0;
  Action action = {};
  bool is_alone = false;  // one worker alone runs its window
  int64_t window = 0;
  // The action's first micro-batch, counted over all windows; not as if joined ones were one.
  int64_t micro_batch_of_call = 0;
  std::vector<std::vector<Item>> taken = {};  // by incoming link
  std::vector<Item> given = {};               // by outgoing link
  // How many collectives it has come to, what it gives to the last one, and what it got of it. Of
  // one that relays a collective, the parts, and what became of them.
  int64_t num_collectives = 0;
  at::Tensor part = {};
  std::vector<at::Tensor> arrived = {};

  // Lets go of what it took and gives.
  void clear() {
    taken.clear();
    given.clear();
    num_collectives = 0;
    part.reset();
    arrived.clear();
  }
};

}  // namespace poptorch_emu
