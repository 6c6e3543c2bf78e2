#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/scheduling/link_queue.h"

namespace poptorch_emu {

// One action on one IPU of one replica, with the items of its links. It belongs to the worker that
// received it from the scheduler, until that worker hands it back.
struct Task {
  int64_t replica = 0;
  int64_t ipu = 0;
  int64_t lane = 0;  // index of the frame that runs it
  int64_t worker = 0;
  int64_t begun_ns = 0;
  Action action = {};
  bool is_alone = false;  // whether one worker alone runs its window
  int64_t window = 0;
  // The action's first micro-batch, counted over all windows, with joined ones counted separately.
  int64_t micro_batch_of_call = 0;
  std::vector<std::vector<Item>> taken = {};  // items of each incoming link
  std::vector<Item> given = {};               // items for each outgoing link
  // Number of collectives reached, the part for the last one, and its results. In a task that
  // relays a collective: the parts, and then the results.
  int64_t num_collectives = 0;
  at::Tensor part = {};
  std::vector<at::Tensor> arrived = {};

  // Releases the items and tensors that the task holds.
  void clear() {
    taken.clear();
    given.clear();
    num_collectives = 0;
    part.reset();
    arrived.clear();
  }
};

}  // namespace poptorch_emu
