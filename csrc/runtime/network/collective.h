#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// What a replica gets of a collective, as a tensor of its own, given the parts of all
// replicas, or the sum alone. Replicas add up in the order of a ring, as they do gradients, so that
// all get the same bits, in any number of processes. Throws `Error` if the operator expects another
// number of replicas, or pieces that the parts do not have.
at::Tensor collective_result(const Instruction& instruction, const std::vector<at::Tensor>& parts,
                             int64_t replica, int64_t num_replicas);

// Makes of the parts of the replicas here those of all, or their sum, as exchange `number` of a
// window. All processes call this for the same collective, in the same order.
std::vector<at::Tensor> exchanged(Collective collective, const std::vector<at::Tensor>& parts,
                                  const Replicas& replicas, Ring& ring, int64_t number);

}  // namespace poptorch_emu
