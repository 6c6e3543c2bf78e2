#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// Returns a replica's result of a collective in its own memory, from the parts of all replicas, or
// from the sum alone. Replicas add up in the order of a ring, as for gradients, so that all receive
// the same bits for any number of processes. Throws `Error` if the operator expects another number
// of replicas, or if parts cannot be divided into the required pieces.
at::Tensor collective_result(const Instruction& instruction, const std::vector<at::Tensor>& parts,
                             int64_t replica, int64_t num_replicas);

// Exchanges the parts of the replicas here for those of all replicas, or for their sum, as exchange
// `number` of a window. All processes call it for the same collective, in the same order.
std::vector<at::Tensor> exchanged(Collective collective, const std::vector<at::Tensor>& parts,
                                  const Replicas& replicas, Ring& ring, int64_t number);

}  // namespace poptorch_emu
