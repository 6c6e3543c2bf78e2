#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/remote.h"

namespace poptorch_emu {

// What lives on the virtual IPUs between and during calls: variables, accumulators,
// hyper-parameters. A variable that is the same on all replicas is stored once. Not synchronised:
// the executor lets only one thread at a time touch an entry.
class DeviceMemory {
 public:
  DeviceMemory(const Program& program, int64_t num_replicas);

  // Copies a host tensor in; throws `Error` if shape or dtype differ from the variable's.
  void write(VariableId id, int64_t replica, const at::Tensor& value);
  // Returns a fresh copy.
  at::Tensor read(VariableId id, int64_t replica) const;

  const at::Tensor& variable(VariableId id, int64_t replica) const;
  // The variable as a segment computes with it: a copy if it lives in streaming memory.
  at::Tensor load(VariableId id, int64_t replica);
  // Makes `value` the variable; nothing is copied unless it lives in streaming memory.
  void assign(VariableId id, int64_t replica, at::Tensor value);
  // Keeps what was assigned since the last commit, or takes it back.
  void commit();
  void roll_back();

  const at::Tensor& scalar(ScalarId id) const { return scalars_[id.value]; }
  void set_scalar(ScalarId id, double value);

  // Adds one micro-batch's contribution, the `index`-th of this window. The first is moved in when
  // nobody else holds it.
  void accumulate(AccumulatorId id, int64_t replica, at::Tensor value, int64_t index);
  // Returns the sum over replicas, added in replica order once a window.
  const at::Tensor& reduced(AccumulatorId id);
  // The same as a segment computes with it: a copy if it lives in streaming memory.
  at::Tensor load_reduced(AccumulatorId id);
  // Empties all accumulators, at the end of a window or after an error.
  void clear_accumulators();

  RemoteTraffic& remote() { return remote_; }
  const RemoteTraffic& remote() const { return remote_; }

  // Bytes of all variables, each counted as often as it is stored.
  int64_t variable_bytes() const;

 private:
  struct AccumulatorState {
    std::vector<at::Tensor> of_replica;
    bool is_reduced = false;
  };

  at::Tensor& slot(VariableId id, int64_t replica);

  // The value of an assigned variable at the last commit; guarded by `undo_mutex_`, since virtual
  // IPUs assign at the same time.
  struct Undo {
    VariableId variable;
    int64_t replica;
    at::Tensor value;
  };

  const Program& program_;
  std::vector<std::vector<at::Tensor>> variables_;
  std::vector<Undo> undo_;
  std::mutex undo_mutex_;
  std::vector<at::Tensor> scalars_;
  std::vector<AccumulatorState> accumulators_;
  RemoteTraffic remote_;
};

}  // namespace poptorch_emu
