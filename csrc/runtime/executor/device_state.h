#pragma once

#include "program/program.h"
#include "runtime/executor/executor_options.h"
#include "runtime/gradients/accumulators.h"
#include "runtime/memory/device_memory.h"
#include "runtime/memory/engine_memory.h"
#include "runtime/memory/remote_traffic.h"

namespace poptorch_emu {

// State of an executor's virtual IPUs between actions. The program and the options must outlive it.
struct DeviceState {
  DeviceState(const Program& program, const ExecutorOptions& options)
      : tensors(program, options.num_replicas, options.num_workers),
        memory(program, options.replicas()),
        accumulators(program, options.replicas(), options.num_workers, remote, options.ring.get()) {
  }

  EngineMemory tensors;  // first, because it holds the tensors of other members
  RemoteTraffic remote;
  DeviceMemory memory;
  Accumulators accumulators;
};

}  // namespace poptorch_emu
