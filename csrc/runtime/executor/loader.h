#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "runtime/executor/call_inputs.h"
#include "runtime/executor/device_state.h"
#include "runtime/executor/frame.h"
#include "runtime/executor/preparations.h"
#include "runtime/executor/random_state.h"
#include "runtime/executor/transfer_times.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// Fills the registers of a frame from the sources that the loads of its segment name.
//
// The loader owns all values that actions only read: the inputs of a call, prepared values, and the
// state of the random numbers. Any worker may load.
class Loader {
 public:
  Loader(const Program& program, const ExecutorOptions& options, DeviceState& state,
         TransferTimes& times);

  void load(const Task& task, Frame& frame);

  CallInputs& inputs() { return inputs_; }
  Preparations& preparations() { return preparations_; }
  RandomState& random_state() { return random_state_; }

 private:
  // The register that a load fills.
  struct Target {
    Frame& frame;
    RegisterId id;

    const at::Tensor& own(const at::Tensor& shared) const { return frame.own(id, shared); }
  };
  at::Tensor value(const LoadInput& source, const Task& task, const Target& target);
  at::Tensor value(const LoadVariable& source, const Task& task, const Target& target);
  at::Tensor value(const LoadConstant& source, const Task& task, const Target& target);
  at::Tensor value(const LoadScalar& source, const Task& task, const Target& target);
  at::Tensor value(const LoadAccumulator& source, const Task& task, const Target& target);
  at::Tensor value(const LoadVariableRows& source, const Task& task, const Target& target);
  at::Tensor value(const LoadAccumulatorRows& source, const Task& task, const Target& target);
  at::Tensor value(const LoadRng& source, const Task& task, const Target& target);
  at::Tensor value(const LoadPrepared& source, const Task& task, const Target& target);
  at::Tensor from_remote(const at::Tensor& value, bool is_gathered);

  const Program& program_;
  const int64_t num_replicas_;
  DeviceState& state_;
  TransferTimes& times_;
  CallInputs inputs_;
  Preparations preparations_;
  RandomState random_state_;
  std::vector<SegmentId> first_reader_;  // for each input, the first segment that reads it
};

}  // namespace poptorch_emu
