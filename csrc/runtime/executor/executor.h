#pragma once

#include <ATen/core/Tensor.h>

#include <cfenv>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/shared_loops.h"
#include "program/program.h"
#include "runtime/executor/event_log.h"
#include "runtime/executor/host_desk.h"
#include "runtime/executor/interpreter.h"
#include "runtime/executor/result_stream.h"
#include "runtime/gradients/accumulators.h"
#include "runtime/memory/device_memory.h"
#include "runtime/memory/engine_memory.h"
#include "runtime/memory/remote_traffic.h"
#include "runtime/network/ring.h"
#include "runtime/scheduling/scheduler.h"
#include "runtime/scheduling/thread_pool.h"

namespace poptorch_emu {

// How an executor uses the machine and its replicas.
struct ExecutorOptions {
  int64_t num_replicas = 1;
  int64_t num_workers = 1;
  int64_t num_intra_op_threads = 1;
  // Which input block each replica reads of those of one micro-batch.
  std::vector<int64_t> input_group_of_replica = {0};
  // Where there are replicas in other processes: the number of the first one here among all, and
  // what reaches the others.
  int64_t first_replica = 0;
  std::shared_ptr<Ring> ring = nullptr;
  // Has each virtual IPU work through its list of actions, as on the machine, also where the
  // results would be the same in another order.
  bool follows_lists = false;
};

// Runs a program on virtual IPUs. A virtual IPU is one IPU of one replica; it works through its
// list of actions in order, waiting for its links, unless nobody can tell when micro-batches are
// taken through all segments one by one. Any number of workers gives the same results: each link
// has one producer and one consumer, each list one order, and each sum a fixed order.
//
// Shares the program and owns the parts, each of which says what it owns and who may call it:
// workers get tasks from the scheduler and have the interpreter carry them out. One call at a time;
// only results may be taken by another thread while it runs.
class Executor {
 public:
  Executor(std::shared_ptr<const Program> program, ExecutorOptions options);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void write_variable(VariableId id, int64_t replica, const at::Tensor& value);
  at::Tensor read_variable(VariableId id, int64_t replica) const;
  void set_scalar(ScalarId id, double value);

  // The random numbers depend on the seed and on how many micro-batches ran since it was set; those
  // of a window that failed do not count.
  std::pair<int64_t, int64_t> rng_state() const { return interpreter_.rng_state(); }
  void set_rng_state(int64_t seed, int64_t counter);

  // Makes a function known to the program's host calls of this name. Only the thread that called
  // `run` calls it, with that thread's state.
  void set_host_function(std::string name, HostFunction function);

  // `look` is called ten times a second while a call runs, by the thread that runs it. What it
  // throws ends the call like any error.
  void set_look(std::function<void()> look) { desk_.set_look(std::move(look)); }

  // Runs `num_windows` windows on whole batches and returns the outputs. After an error the
  // variables are those of the last complete window, and the next call can run.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, int64_t num_windows);

  // Streaming: between `begin_stream` and `end_stream` the results of a call can be taken while it
  // runs, by another thread. A result holds for each of the first `num_outputs` outputs the rows of
  // one step, which is a window in training and a micro-batch where a call is one window. These
  // outputs come from micro-batches and have mode `All`; the others are returned by the call alone.
  // The engine pauses while `max_unread` results wait to be taken.
  void begin_stream(int64_t max_unread, int64_t micro_batches_per_step, int64_t num_outputs);
  // Waits for the next result; empty after the last one of the call, or when the call has failed.
  std::vector<at::Tensor> take_result();
  // From now on results are dropped and the engine does not pause; a call goes on to its end.
  void end_stream();

  // Has what runs noted in a log of so many events at most.
  void set_tracing(bool is_tracing, int64_t max_events = EventLog::kMaxEvents);
  const EventLog& events() const { return events_; }
  std::vector<Event> take_events() { return events_.take(); }

  // Bytes of all variables, and of those of one replica.
  int64_t variable_bytes() const { return memory_.variable_bytes(); }
  int64_t replica_bytes(int64_t replica) const { return memory_.replica_bytes(replica); }
  // The most that the accumulators of a replica ever held at the end of a window.
  int64_t peak_accumulator_bytes(int64_t replica) const {
    return peak_accumulator_bytes_.at(replica);
  }
  // For each link the most items it ever held, and the most bytes that one replica's values in it
  // ever had.
  std::vector<int64_t> peak_link_items() const { return scheduler_.peak_link_items(); }
  std::vector<int64_t> peak_link_bytes() const { return scheduler_.peak_link_bytes(); }
  // Where the tensors that the virtual IPUs make lie.
  const EngineMemory& tensor_memory() const { return tensor_memory_; }
  // What came from and went to streaming memory since the executor was made.
  const RemoteTraffic& remote() const { return remote_; }
  // When the inputs and outputs of the last call crossed.
  const Crossings& crossings() const { return interpreter_.crossings(); }

 private:
  void prepare(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  void prepare_values();
  void work(int64_t worker);
  bool serve();
  void run_tasks(Task* task, int64_t worker);
  Scheduler::Next run_task(Task*& running, int64_t worker);
  void end_window();
  void give_up(std::exception_ptr error);

  const std::shared_ptr<const Program> program_;
  const ExecutorOptions options_;
  EngineMemory tensor_memory_;  // before what holds tensors
  RemoteTraffic remote_;
  DeviceMemory memory_;
  Accumulators accumulators_;
  std::vector<int64_t> peak_accumulator_bytes_;
  EventLog events_;
  ResultStream stream_;
  HostDesk desk_;
  SharedLoops loops_;
  Scheduler scheduler_;
  Interpreter interpreter_;
  std::fenv_t modes_ = {};  // of the thread that calls
  ThreadPool pool_;         // last: its threads use the others
};

}  // namespace poptorch_emu
