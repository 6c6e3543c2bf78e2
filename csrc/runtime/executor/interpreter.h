#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "program/program.h"
#include "runtime/executor/collector.h"
#include "runtime/executor/crossings.h"
#include "runtime/executor/frame.h"
#include "runtime/executor/preparations.h"
#include "runtime/gradients/accumulators.h"
#include "runtime/memory/device_memory.h"
#include "runtime/memory/engine_memory.h"
#include "runtime/memory/remote_traffic.h"
#include "runtime/scheduling/task.h"

namespace poptorch_emu {

// How a worker waits for what others do: until something holds, false where the call is over
// before; and how it says that it has done something that others may wait for.
struct Observation {
  std::function<bool(const std::function<bool()>& holds)> wait_until;
  std::function<void()> note;
};

// Carries out single actions: fills the registers of a frame from inputs, memory and links, runs
// the instructions, and brings the results to outputs, memory and links.
//
// Owns the frames, the inputs and outputs of a call, when they crossed, and the random state; what
// outlives a window, it is lent. Not synchronised: of two actions that touch the same thing the
// scheduler runs only one at a time.
class Interpreter {
 public:
  // `input_group_of_replica` says which input block each replica reads of those of one
  // micro-batch; `first_replica`, which number the first one has among those of all processes;
  // `ring` reaches those, and is null where there are none. `call_host` is what instructions call
  // functions of the host by, `observation` how micro-batches of one virtual IPU that are under way
  // at once take turns.
  Interpreter(const Program& program, std::vector<int64_t> input_group_of_replica,
              int64_t first_replica, Ring* ring, int64_t num_lanes, EngineMemory& tensor_memory,
              DeviceMemory& memory, Accumulators& accumulators, RemoteTraffic& remote,
              const HostCaller& call_host, Observation observation);

  // By the thread that runs the call, when no worker is at work. The first throws `Error` if the
  // inputs don't fit so many windows; the third returns the outputs and lets go of the inputs.
  void check(const std::vector<at::Tensor>& inputs, int64_t num_windows) const;
  void begin_call(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  std::vector<at::Tensor> end_call();
  // Empties the frames, after an error.
  void clear();
  // Runs the preparations of a call, unless what they made is current. Throws `Error`.
  void prepare();

  // By any worker. The values of the task become known when `may_store` has returned, but for the
  // products that it adds to sums; where it returns false they do not, and neither does this.
  // Throws `Error`.
  bool run(Task& task, const std::function<bool()>& may_store);

  // When nothing runs: lets go of variables that have been replaced.
  void forget_replaced();

  // The seed, and how many micro-batches have drawn numbers since it was set.
  std::pair<int64_t, int64_t> rng_state() const { return {seed_, counter_}; }
  void set_rng_state(int64_t seed, int64_t counter);

  // Whether an output appears once a window, not once a micro-batch.
  bool is_of_window(OutputId id) const { return is_window_output_[id.value]; }
  // Of the running call.
  const std::vector<OutputCollector>& outputs() const { return outputs_; }
  const Crossings& crossings() const { return crossings_; }

 private:
  int64_t num_micro_batches(int64_t num_windows) const;
  std::unique_ptr<Frame> make_frame(const Segment& segment, int64_t replica, int64_t lane);
  Frame& frame_of(SegmentId id, int64_t replica, int64_t lane);
  template <class Use>
  void for_each_frame(size_t segment, const Use& use);
  void find_ends();
  template <class Source>
  void forget_loads();
  [[noreturn]] void fail(const Task& task, const std::string& cause) const;
  void exchange(const Segment& segment, int64_t number);
  template <class Add>
  void add_in_turn(AccumulatorId id, int64_t replica, int64_t micro_batch, const Add& add);
  void unpack_inputs(Task& task, Frame& frame);
  void pack_outputs(Task& task, Frame& frame);

  // The register that a load fills.
  struct Place {
    Frame& frame;
    RegisterId target;

    const at::Tensor& own(const at::Tensor& shared) const { return frame.own(target, shared); }
  };
  at::Tensor load(const LoadInput& source, const Task& task, const Place& place);
  at::Tensor load(const LoadVariable& source, const Task& task, const Place& place);
  at::Tensor load(const LoadConstant& source, const Task& task, const Place& place);
  at::Tensor load(const LoadScalar& source, const Task& task, const Place& place);
  at::Tensor load(const LoadAccumulator& source, const Task& task, const Place& place);
  at::Tensor load(const LoadVariableRows& source, const Task& task, const Place& place);
  at::Tensor load(const LoadAccumulatorRows& source, const Task& task, const Place& place);
  at::Tensor load(const LoadRng& source, const Task& task, const Place& place);
  at::Tensor load(const LoadPrepared& source, const Task& task, const Place& place);
  void load_all(const Segment& segment, const Task& task, Frame& frame);
  at::Tensor came_from_remote(const at::Tensor& value, bool is_gathered);
  at::Tensor rows_of(InputId id, const at::Tensor& whole, const Task& task) const;
  at::Tensor rng_for(const Task& task) const;

  // Each may take the value of the register, if the store is the last to use it.
  void store(const StoreOutput& target, Frame& frame, const Store& store, const Task& task);
  void store(const StoreVariable& target, Frame& frame, const Store& store, const Task& task);
  void store(const Accumulate& target, Frame& frame, const Store& store, const Task& task);
  void store(const AccumulateRows& target, Frame& frame, const Store& store, const Task& task);
  void store(const StoreVariableRows& target, Frame& frame, const Store& store, const Task& task);
  void give_output(OutputId id, const at::Tensor& piece, int64_t index, int64_t replica);

  const Program& program_;
  const std::vector<int64_t> input_group_of_replica_;
  const int64_t first_replica_;
  Ring* const ring_;
  const int64_t num_replicas_;
  const int64_t num_groups_;
  EngineMemory& tensor_memory_;
  DeviceMemory& memory_;
  Accumulators& accumulators_;
  RemoteTraffic& remote_;
  const HostCaller call_host_;
  const Observation observation_;
  // By input: the first segment that reads it. By output: whether it appears once a window.
  std::vector<SegmentId> first_reader_;
  std::vector<bool> is_window_output_;
  // By segment: the number of the first of its exchanges with other processes, and whether it
  // computes on parts of tensors.
  std::vector<int64_t> exchange_number_;
  std::vector<bool> is_of_parts_;
  // By segment, replica and lane; null before the first use.
  std::vector<std::vector<std::vector<std::unique_ptr<Frame>>>> frames_;
  Preparations preparations_;
  int64_t seed_ = 0;
  int64_t counter_ = 0;

  // Of the running call.
  std::vector<at::Tensor> inputs_;
  std::vector<OutputCollector> outputs_;
  Crossings crossings_;
  int64_t num_blocks_ = 0;  // of rows, in each batched input
};

}  // namespace poptorch_emu
