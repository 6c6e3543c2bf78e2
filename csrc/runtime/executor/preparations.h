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

// Runs the preparations of a program and keeps what they compute, such as packed weights. A value
// is current as long as nothing that its preparation loads has changed (`num_changes`).
//
// A preparation of lifetime `kCall` runs before a call. One of lifetime `kWindow` runs when a
// micro-batch reads it first, and after that in the same memory: at once when an update has changed
// the weight in its place, since a small weight is still in the cache then; otherwise, since an
// assigned weight may be rolled back, when it is read in a later window.
//
// Owns a frame for each copy of the variable that a preparation loads. No variable of a preparation
// changes while micro-batches read the values.
class Preparations {
 public:
  Preparations(const Program& program, const DeviceMemory& memory);

  // Before a call, when no worker is at work. Returns whether values have been replaced. Throws
  // `Error` when an operator fails.
  bool run_before_call();

  // By any worker: the value of a register for the replica, made again if it is not current.
  const at::Tensor& value(const LoadPrepared& source, int64_t replica);

  // By the worker that has changed the replica's copy of a variable in its place: makes the values
  // again that were made of it before. No worker reads them meanwhile.
  void renew(VariableId id, int64_t replica);

  // Lets go of all values, when no worker is at work.
  void clear();

 private:
  struct Copy {
    Frame frame;
    std::atomic<int64_t> made_at = kNever;  // `changes_of` what it was made of
    std::mutex mutex;                       // for workers that find it not current
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
  // The number of changes so far of all that a preparation loads.
  int64_t changes_of(const Preparation& preparation, int64_t replica) const;
  void run(const Preparation& preparation, Copy& copy, int64_t replica) const;

  const Program& program_;
  const DeviceMemory& memory_;
  std::vector<std::unique_ptr<Preparation>> preparations_;    // by segment; null for the others
  std::vector<std::vector<const Preparation*>> of_variable_;  // by variable, of lifetime `kWindow`
};

}  // namespace poptorch_emu
