#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/executor/device_state.h"
#include "runtime/executor/executor_options.h"
#include "runtime/executor/frame.h"
#include "runtime/executor/loader.h"
#include "runtime/executor/output_collector.h"
#include "runtime/executor/transfer_times.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// Callbacks through which an action calls the host and waits for other workers.
struct Callbacks {
  // Calls a host function.
  HostCaller call_host;
  // Waits until `holds` returns true by changes of other workers; returns false if the call ends.
  std::function<bool(const std::function<bool()>& holds)> wait_until;
  // Reports a change for which other workers may wait.
  std::function<void()> notify;
};

// Result of running a task.
enum class Outcome {
  kDone,
  kWaits,      // the task waits at a collective for other replicas
  kAbandoned,  // the call is over
};

// Carries out single actions: fills the registers of a frame from inputs, memory and links, runs
// the instructions, and stores the results in outputs, memory and links.
//
// The interpreter owns the frames, and the inputs and outputs of a call. It is not synchronised:
// the scheduler runs one at a time of the actions that access the same data.
class Interpreter {
 public:
  // The arguments must outlive the interpreter.
  Interpreter(const Program& program, const ExecutorOptions& options, DeviceState& state,
              Callbacks callbacks);

  // The following functions are called by the thread that runs the call while no worker runs.

  // Throws `Error` if the inputs cannot be split for `num_windows`.
  void check(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  // Runs the preparations of lifetime `kCall` whose values are not current. Throws `Error`.
  void prepare();
  void begin_call(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  // Returns the outputs, and releases the inputs.
  std::vector<at::Tensor> end_call();
  // Clears the frames, after an error.
  void clear();
  // Releases variables that were replaced, after a window.
  void forget_replaced();

  // Called by any worker: carries out a task, up to its next collective. It calls `may_store`
  // before results become visible, except for products that are added to sums. It abandons the task
  // if `may_store` returns false or if the call ends during a wait. Throws `Error`.
  Outcome run(Task& task, const std::function<bool()>& may_store);

  RandomState& random_state() { return loader_.random_state(); }

  // Returns whether an output has one piece for each window instead of each micro-batch.
  bool is_of_window(OutputId id) const { return is_window_output_[id.value]; }
  // Returns the outputs of the running call.
  const std::vector<OutputCollector>& outputs() const { return outputs_; }
  const TransferTimes& transfer_times() const { return times_; }

 private:
  std::unique_ptr<Frame> make_frame(const Segment& segment, int64_t replica, int64_t lane);
  Frame& frame_of(SegmentId id, int64_t replica, int64_t lane);
  template <class Use>
  void for_each_frame(size_t segment, const Use& use);
  template <class Source>
  void forget_loads();
  Outcome carry_out(Task& task, const std::function<bool()>& may_store);
  bool run_frame(Task& task, Frame& frame);
  void relay(Task& task);
  [[noreturn]] void fail(const Task& task, const std::string& cause) const;
  void exchange(const Segment& segment, int64_t number);
  template <class Add>
  void add_in_turn(AccumulatorId id, int64_t replica, int64_t micro_batch, const Add& add);
  void unpack_inputs(Task& task, Frame& frame);
  void pack_outputs(Task& task, Frame& frame);

  // Each function may move the value of the register if the store is its last use.
  void store(const StoreOutput& target, Frame& frame, const Store& store, const Task& task);
  void store(const StoreVariable& target, Frame& frame, const Store& store, const Task& task);
  void store(const Accumulate& target, Frame& frame, const Store& store, const Task& task);
  void store(const AccumulateRows& target, Frame& frame, const Store& store, const Task& task);
  void store(const StoreVariableRows& target, Frame& frame, const Store& store, const Task& task);
  void give_output(OutputId id, const at::Tensor& piece, int64_t index, int64_t replica);

  const Program& program_;
  const ExecutorOptions& options_;
  DeviceState& state_;
  const Callbacks callbacks_;
  const std::vector<bool> is_window_output_;    // indexed by output
  const std::vector<int64_t> exchange_number_;  // first exchange of each segment
  const std::vector<bool> has_collectives_;     // indexed by segment
  TransferTimes times_;
  Loader loader_;
  // By segment, replica and lane; null before the first use.
  std::vector<std::vector<std::vector<std::unique_ptr<Frame>>>> frames_;
  std::vector<OutputCollector> outputs_;  // of the running call
};

}  // namespace poptorch_emu
