#pragma once

#include <ATen/core/Tensor.h>

#include <cfenv>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "common/shared_loops.h"
#include "program/program.h"
#include "runtime/executor/device_state.h"
#include "runtime/executor/event_log.h"
#include "runtime/executor/executor_options.h"
#include "runtime/executor/host_calls.h"
#include "runtime/executor/interpreter.h"
#include "runtime/executor/result_stream.h"
#include "runtime/scheduling/scheduler.h"
#include "runtime/scheduling/thread_pool.h"

namespace poptorch_emu {

// Runs a program on virtual IPUs. A virtual IPU is one IPU of one replica. It runs the actions of
// its list in order and waits for its links. If results cannot differ, workers instead take single
// micro-batches through all segments. Results do not depend on the number of workers, because each
// link has one producer and one consumer, each list one order, and each sum a fixed order.
//
// The executor shares the program and owns the other parts. Workers get tasks from the scheduler
// and let the interpreter carry them out. There is one call at a time. While it runs, another
// thread may take results, but do nothing else.
class Executor {
 public:
  Executor(std::shared_ptr<const Program> program, ExecutorOptions options);

  // Return the parts that a caller reads and changes between calls: variables, scalars and tensor
  // memory; host functions; the log of actions; transfers of the last call.
  DeviceState& state() { return state_; }
  HostCalls& host_calls() { return host_calls_; }
  EventLog& events() { return events_; }
  const TransferTimes& transfer_times() const { return interpreter_.transfer_times(); }
  // Returns the state of the random numbers: the seed, and the number of micro-batches run since it
  // was set, without those of failed windows.
  RandomState& random_state() { return interpreter_.random_state(); }

  // Runs `num_windows` windows on whole batches and returns the outputs. After an error the
  // variables are those of the last complete window, and another call can run.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, int64_t num_windows);

  // Between `begin_stream` and `end_stream` another thread can take results while a call runs. A
  // result holds the rows of one step of `micro_batches_per_step`, for each of the first
  // `num_outputs` outputs. These outputs come from micro-batches and have mode `All`. The call
  // still returns all outputs at its end. The engine pauses while `max_unread` results wait.
  void begin_stream(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);
  // Waits for the next result. Returns nothing after the last one of the call, or after a failure.
  std::vector<at::Tensor> take_result();
  // Return all complete results; `wait_for_results` waits first, as `ResultStream` describes.
  TakenResults take_results();
  TakenResults wait_for_results(int64_t linger_microseconds);
  // Drops all further results, and the engine no longer pauses. A running call continues.
  void end_stream();

  // Returns the maximum bytes that a replica's accumulators held at the end of a window.
  int64_t peak_accumulator_bytes(int64_t replica) const {
    return peak_accumulator_bytes_.at(replica);
  }
  // Returns the maximum number of items, and of their bytes, in each link.
  std::vector<LinkPeak> link_peaks() const { return scheduler_.link_peaks(); }

 private:
  void prepare(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  void prepare_values();
  void work(int64_t worker);
  bool serve();
  void run_tasks(Task* task, int64_t worker);
  Scheduler::Next run_task(Task*& running, int64_t worker);
  void note_events(const Task& task, int64_t start_ns);
  void end_window();
  void give_up(std::exception_ptr error);

  const std::shared_ptr<const Program> program_;
  const ExecutorOptions options_;
  DeviceState state_;  // before all members that hold tensors
  std::vector<int64_t> peak_accumulator_bytes_;
  EventLog events_;
  ResultStream stream_;
  HostCalls host_calls_;
  SharedLoops loops_;
  Scheduler scheduler_;
  Interpreter interpreter_;
  // Floating-point modes of the thread that made the call, or that began the stream.
  std::fenv_t modes_ = {}, modes_of_stream_ = {};
  ThreadPool pool_;  // last, because its threads use the other members
};

}  // namespace poptorch_emu
