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

// Runs a program on virtual IPUs. A virtual IPU is one IPU of one replica. It works through its
// list of actions in order and waits for its links. Where the results cannot differ, micro-batches
// are taken through all segments one by one instead. Any number of workers gives the same results:
// each link has one producer and one consumer, each list one order, and each sum a fixed order.
//
// Shares the program and owns the other parts. Workers get tasks from the scheduler and have the
// interpreter carry them out. There is one call at a time. While it runs, another thread may take
// results, and nothing else.
class Executor {
 public:
  Executor(std::shared_ptr<const Program> program, ExecutorOptions options);

  // What a caller reads and changes between calls: variables, scalars and the memory of tensors;
  // functions of the host; the log of actions; transfers of the last call.
  DeviceState& state() { return state_; }
  HostCalls& host_calls() { return host_calls_; }
  EventLog& events() { return events_; }
  const TransferTimes& transfer_times() const { return interpreter_.transfer_times(); }
  // The random numbers depend on the seed and on how many micro-batches have run since it was set,
  // without those of windows that failed.
  RandomState& random_state() { return interpreter_.random_state(); }

  // Runs `num_windows` windows on whole batches and returns the outputs. After an error the
  // variables are those of the last complete window, and another call can run.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, int64_t num_windows);

  // Between `begin_stream` and `end_stream` another thread can take the results of a call while it
  // runs. A result holds, for each of the first `num_outputs` outputs, the rows of one step of
  // `micro_batches_per_step`. These outputs come from micro-batches and have mode `All`. The call
  // returns all outputs at its end. The engine pauses while `max_unread` results wait to be taken.
  void begin_stream(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);
  // Waits for the next result. Returns nothing after the last one of the call, or when it failed.
  std::vector<at::Tensor> take_result();
  // Returns all that are complete; the second function waits first, as `ResultStream` says.
  TakenResults take_results();
  TakenResults wait_for_results(int64_t linger_microseconds);
  // From now on results are dropped and the engine does not pause. A running call goes on.
  void end_stream();

  // The most bytes that the accumulators of a replica ever held at the end of a window.
  int64_t peak_accumulator_bytes(int64_t replica) const {
    return peak_accumulator_bytes_.at(replica);
  }
  // By link, the most that it ever held.
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
  DeviceState state_;  // before what holds tensors
  std::vector<int64_t> peak_accumulator_bytes_;
  EventLog events_;
  ResultStream stream_;
  HostCalls host_calls_;
  SharedLoops loops_;
  Scheduler scheduler_;
  Interpreter interpreter_;
  // Of the thread that calls; a streamed call runs on another one than asks for it.
  std::fenv_t modes_ = {}, modes_of_stream_ = {};
  ThreadPool pool_;  // last: its threads use the others
};

}  // namespace poptorch_emu
