#pragma once

#include "program/program.h"
#include "runtime/executor/executor_options.h"
#include "runtime/gradients/accumulators.h"
#include "runtime/memory/device_memory.h"
#include "runtime/memory/engine_memory.h"
#include "runtime/memory/remote_traffic.h"

namespace poptorch_emu {

// What the virtual IPUs of an executor hold between actions. The program and the options live
// longer.
struct DeviceState {
  DeviceState(const Program& program, const ExecutorOptions& options)
      : tensors(program, options.num_replicas, options.num_workers),
        memory(program, options.replicas()),
        accumulators(program, options.replicas(), options.num_workers, remote, options.ring.get()) {
  }

  EngineMemory tensors;  // first, since the tensors of the others lie in it
  RemoteTraffic remote;
  DeviceMemory memory;
  Accumulators accumulators;
};

}  // namespace poptorch_emu
