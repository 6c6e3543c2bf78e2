#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/executor/frame.h"
#include "runtime/memory/device_memory.h"

namespace poptorch_emu {

// Runs the preparations of a program and keeps their values, such as packed weights. A value is
// current while no source of its preparation has changed (`num_changes`).
//
// A preparation with lifetime `kCall` runs before a call. One with lifetime `kWindow` runs when a
// micro-batch first reads it, and later reuses its memory. If an update changes the weight in
// place, it runs again immediately, because a small weight is still in the cache. Otherwise it runs
// when a later window reads it, because an assigned weight may be rolled back.
//
// This class owns one frame for each copy of the variable that a preparation loads. No variable of
// a preparation changes while micro-batches read the values.
class Preparations {
 public:
  Preparations(const Program& program, const DeviceMemory& memory);

  // Called before a call while no worker runs. Returns whether values were replaced. Throws `Error`
  // when an operator fails.
  bool run_before_call();

  // Called by any worker: returns a register's value for the replica, recomputed if not current.
  const at::Tensor& value(const LoadPrepared& source, int64_t replica);

  // Called by the worker that changed the replica's copy of a variable in place: recomputes values
  // that exist. No worker may read them meanwhile.
  void renew(VariableId id, int64_t replica);

  // Releases all values. No worker may be running.
  void clear();

 private:
  struct Copy {
    Frame frame;
    std::atomic<int64_t> made_at = kNever;  // number of changes at its last run
    std::mutex mutex;                       // held by a worker that recomputes it
  };
  struct Preparation {
    const Segment& segment;
    std::vector<VariableId> variables;
    std::vector<ScalarId> scalars;
    std::vector<std::unique_ptr<Copy>> copies;
  };
  static constexpr int64_t kNever = -1;

  std::unique_ptr<Preparation> make(const Segment& segment) const;
  Copy& copy_of(const Preparation& preparation, int64_t replica) const;
  // Returns the number of changes so far of all sources of a preparation.
  int64_t changes_of(const Preparation& preparation, int64_t replica) const;
  void run(const Preparation& preparation, Copy& copy, int64_t replica) const;

  const Program& program_;
  const DeviceMemory& memory_;
  std::vector<std::unique_ptr<Preparation>> preparations_;    // for each segment, or null
  std::vector<std::vector<const Preparation*>> of_variable_;  // with lifetime `kWindow`
};

}  // namespace poptorch_emu
