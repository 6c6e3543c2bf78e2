#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// Options of an executor: its replicas, and its use of the host's processors.
struct ExecutorOptions {
  int64_t num_replicas = 1;  // replicas in this process
  int64_t num_workers = 1;
  int64_t num_intra_op_threads = 1;
  // Group of inputs for each replica. Replicas of one group read the same inputs: each micro-batch
  // has one block for each group.
  std::vector<int64_t> input_group_of_replica = {0};
  // With replicas in other processes: index of the first replica here among all, and the connection
  // to the other processes.
  int64_t first_replica = 0;
  std::shared_ptr<Ring> ring = nullptr;
  // Whether each virtual IPU follows its list of actions, as on the machine, even if another order
  // has the same results.
  bool follows_lists = false;

  // Returns the replicas of this process among those of all processes.
  Replicas replicas() const {
    if (ring == nullptr) return {num_replicas, 0, num_replicas};
    return {num_replicas, first_replica, num_replicas * ring->peers().num_processes()};
  }
};

}  // namespace poptorch_emu
