#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "program/program.h"
#include "runtime/accumulators.h"
#include "runtime/collector.h"
#include "runtime/frame.h"
#include "runtime/link_queue.h"
#include "runtime/memory.h"
#include "runtime/remote.h"
#include "runtime/result_stream.h"
#include "runtime/segment_memory.h"
#include "runtime/thread_pool.h"

namespace poptorch_emu {

// One executed action, for profiles. Times are of the steady clock.
struct Event {
  int64_t replica;
  int64_t ipu;
  int64_t segment;
  int64_t window;
  int64_t micro_batch;
  int64_t worker;
  int64_t start_ns;
  int64_t end_ns;
};

// When one piece of an input or output began to cross between host and device, and when it had.
struct Span {
  int64_t start_ns;
  int64_t end_ns;
};

// How an executor uses the machine and its replicas.
struct ExecutorOptions {
  int64_t num_replicas = 1;
  int64_t num_workers = 1;
  int64_t num_intra_op_threads = 1;
  // Which input block each replica reads of those of one micro-batch.
  std::vector<int64_t> input_group_of_replica = {0};
};

// A function of the host, called in the middle of a program.
using HostFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Runs a program on virtual IPUs. A virtual IPU is one IPU of one replica; it works through its
// list of actions in order, waiting for its links. Any number of workers gives the same results:
// each link has one producer and one consumer, each list one order, and each sum a fixed order.
//
// Owns variables, links and worker threads, and shares the program. One call at a time.
class Executor {
 public:
  Executor(std::shared_ptr<const Program> program, ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void write_variable(VariableId id, int64_t replica, const at::Tensor& value);
  at::Tensor read_variable(VariableId id, int64_t replica) const;
  void set_scalar(ScalarId id, double value);

  // The random numbers depend on the seed and on how many micro-batches ran since it was set; those
  // of a window that failed do not count.
  std::pair<int64_t, int64_t> rng_state() const { return {seed_, counter_}; }
  void set_rng_state(int64_t seed, int64_t counter);

  // Makes a function known to the program's host calls of this name. Only the thread that called
  // `run` calls it, with that thread's state.
  void set_host_function(std::string name, HostFunction function);

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

  void set_tracing(bool is_tracing) { is_tracing_ = is_tracing; }
  std::vector<Event> take_events();

  // Bytes of all variables, and for each link the most items it ever held.
  int64_t variable_bytes() const { return memory_.variable_bytes(); }
  // Bytes of the variables of one replica, and the most its accumulators ever held at
  // the end of a window.
  int64_t replica_bytes(int64_t replica) const { return memory_.replica_bytes(replica); }
  int64_t peak_accumulator_bytes(int64_t replica) const {
    return peak_accumulator_bytes_.at(replica);
  }
  std::vector<int64_t> peak_link_items() const;
  // For each link the most bytes that one replica's values in it ever had.
  std::vector<int64_t> peak_link_bytes() const;

  // Bytes of memory that the engine keeps for tensors: those of the arenas, in which the virtual
  // IPUs compute, and those of the pool, for what lives on.
  int64_t arena_bytes() const;
  int64_t pool_bytes() const { return pool_->num_bytes(); }
  // Where the tensors of a segment lie in the arena of the replica's IPU; empty before its first
  // run.
  const std::vector<SegmentMemory::Piece>& memory_plan(SegmentId id, int64_t replica) const {
    return segment_memories_.at(id.value).at(replica)->plan();
  }

  // Bytes that came from and went to streaming memory since the executor was made.
  int64_t remote_loaded_bytes() const { return remote_.loaded_bytes(); }
  int64_t remote_stored_bytes() const { return remote_.stored_bytes(); }
  // Of the last call, by input or output: one span for each piece, micro-batch by micro-batch with
  // the replica innermost. An input that nothing reads has crossed when the call begins.
  const std::vector<std::vector<Span>>& input_spans() const { return input_spans_; }
  const std::vector<std::vector<Span>>& output_spans() const { return output_spans_; }

 private:
  struct VirtualIpu {
    int64_t replica;
    int64_t ipu;
    size_t position = 0;  // next action in the IPU's list
    bool is_running = false;
    // Of the action that runs: what its incoming links gave, and what its outgoing ones will get.
    std::vector<std::vector<Item>> taken = {};
    std::vector<Item> given = {};
  };

  struct HostRequest {
    enum State { kWaiting, kServed, kDone };
    const std::string& name;
    std::vector<at::Tensor> tensors;  // the inputs, then the results
    std::exception_ptr error = nullptr;
    State state = kWaiting;
  };

  const Action& next_action(const VirtualIpu& ipu) const;

  // The following are called with the lock held.
  VirtualIpu* find_ready();
  bool is_ready(const VirtualIpu& ipu);
  bool have_peers_arrived(const VirtualIpu& ipu) const;
  bool takes_part(const VirtualIpu& ipu) const;
  void move_to(VirtualIpu& ipu, size_t position);
  bool has_links_ready(const Segment& segment, int64_t replica);
  void take_inputs(VirtualIpu& ipu, const Action& action);
  std::vector<int64_t> receivers(const Link& link, int64_t replica) const;
  void give_outputs(VirtualIpu& ipu, const Action& action);
  void advance(VirtualIpu& ipu);
  void finish_window();
  [[noreturn]] void report_deadlock() const;

  bool is_paused() const;
  void note_results(const VirtualIpu& ipu, const Action& action);

  // Called without the lock.
  void execute(VirtualIpu& ipu, const Action& action);
  void unpack_inputs(VirtualIpu& ipu, const Segment& segment, Frame& frame);
  void pack_outputs(VirtualIpu& ipu, const Segment& segment, Frame& frame);
  at::Tensor rng_for(const VirtualIpu& ipu, int64_t global_micro_batch) const;
  void load(Frame& frame, const Load& load, const VirtualIpu& ipu, const Action& action);
  at::Tensor came_from_remote(const at::Tensor& value, bool is_gathered);
  [[noreturn]] void fail(const Segment& segment, const Action& action, const VirtualIpu& ipu,
                         const std::string& cause) const;
  void store(Frame& frame, const Store& store, const VirtualIpu& ipu, const Action& action);
  void give_output(OutputId id, const at::Tensor& piece, int64_t index, int64_t replica);
  void work(int64_t worker);
  void run_actions(VirtualIpu& ipu, int64_t worker, std::unique_lock<std::mutex>& lock);

  void find_ends();
  // In executor_host.cpp. The second is called with the lock held, by the caller's thread.
  std::vector<at::Tensor> call_host(const std::string& name, std::vector<at::Tensor> inputs);
  bool serve_host_request(std::unique_lock<std::mutex>& lock);
  std::vector<at::Tensor> call_host_here(const std::string& name,
                                         const std::vector<at::Tensor>& inputs);

  void prepare(const std::vector<at::Tensor>& inputs, int64_t num_windows);
  void begin_stream_of_call(int64_t num_micro_batches);
  void end_stream_of_call();
  void prepare_spans();
  void clean_up();
  int64_t global_micro_batch(const Action& action) const;
  at::Tensor rows_of(InputId id, int64_t micro_batch, int64_t replica) const;

  const std::shared_ptr<const Program> program_;
  const ExecutorOptions options_;
  const std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
  // By segment, then replica; and by virtual IPU.
  std::vector<std::vector<std::unique_ptr<SegmentMemory>>> segment_memories_;
  std::vector<Arena> arenas_;
  int64_t num_groups_;
  RemoteTraffic remote_;
  DeviceMemory memory_;
  Accumulators accumulators_;
  std::vector<int64_t> peak_accumulator_bytes_;
  // By input: the first segment that reads it. By output: whether it appears once a window.
  std::vector<SegmentId> first_reader_;
  std::vector<bool> is_window_output_;
  std::vector<LinkQueue> queues_;                            // by link
  std::vector<std::vector<std::unique_ptr<Frame>>> frames_;  // by segment, then replica
  std::vector<VirtualIpu> ipus_;
  std::map<std::string, HostFunction> host_functions_;
  int64_t seed_ = 0;
  int64_t counter_ = 0;

  // State of the running call.
  std::vector<at::Tensor> inputs_;
  std::vector<OutputCollector> outputs_;
  // Each element is written by one action only.
  std::vector<std::vector<Span>> input_spans_;
  std::vector<std::vector<Span>> output_spans_;
  int64_t num_windows_ = 0;
  int64_t window_ = 0;
  int64_t micro_batch_actions_left_ = 0;  // of this window
  int64_t ipus_at_end_ = 0;
  int64_t num_running_ = 0;
  int64_t num_waiting_ = 0;
  bool is_done_ = false;
  std::exception_ptr error_;
  std::thread::id caller_;
  std::optional<at::ThreadLocalState> caller_state_;
  std::deque<HostRequest*> host_requests_;
  bool is_tracing_ = false;
  std::vector<Event> events_;
  std::unique_ptr<ResultStream> stream_;

  std::mutex mutex_;
  std::condition_variable progress_;
  std::condition_variable result_ready_;

  ThreadPool threads_;  // last: its threads use the others
};

}  // namespace poptorch_emu
