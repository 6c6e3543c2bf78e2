#include "runtime/executor.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "common/clock.h"
#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Gives the current thread a number of threads for one operation, and back what it had.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int64_t count) : before_(at::get_num_threads()) {
    if (before_ != count) at::set_num_threads(static_cast<int>(count));
  }
  ~IntraOpThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  int before_;
};

// Returns `program`, which can be run with these options.
std::shared_ptr<const Program> fitting(std::shared_ptr<const Program> program,
                                       const ExecutorOptions& options) {
  const std::vector<int64_t>& groups = options.input_group_of_replica;
  if (options.num_replicas < 1 || options.num_workers < 1 || options.num_intra_op_threads < 1 ||
      static_cast<int64_t>(groups.size()) != options.num_replicas ||
      *std::min_element(groups.begin(), groups.end()) < 0) {
    throw Error(
        "An executor needs at least one replica and one worker, at least one thread for an "
        "operation, and for each replica the group of inputs that it reads, counted from 0; it "
        "was given " +
        std::to_string(options.num_replicas) + " replicas, " + std::to_string(options.num_workers) +
        " workers, " + std::to_string(options.num_intra_op_threads) + " threads and the groups " +
        describe(groups) + ".");
  }
  program->check_replicas(options.num_replicas);
  return program;
}

}  // namespace

Executor::Executor(std::shared_ptr<const Program> program, ExecutorOptions options)
    : program_(fitting(std::move(program), options)),
      options_(std::move(options)),
      memory_(*program_, options_.num_replicas),
      accumulators_(*program_, options_.num_replicas, remote_),
      peak_accumulator_bytes_(options_.num_replicas, 0),
      threads_(options_.num_workers, [this](int64_t worker) {
        const IntraOpThreads threads(options_.num_intra_op_threads);
        work(worker);
      }) {
  install_engine_allocator();
  num_groups_ = 1 + *std::max_element(options_.input_group_of_replica.begin(),
                                      options_.input_group_of_replica.end());
  find_ends();
  for (const Link& link : program_->links) queues_.emplace_back(link, options_.num_replicas);
  for (const Segment& segment : program_->segments) {
    std::vector<std::unique_ptr<Frame>> of_replica;
    for (int64_t r = 0; r < options_.num_replicas; ++r) {
      of_replica.push_back(
          std::make_unique<Frame>(segment, program_->numerics.checks_floating_point,
                                  [this](const std::string& name, std::vector<at::Tensor> tensors) {
                                    return call_host(name, std::move(tensors));
                                  }));
    }
    frames_.push_back(std::move(of_replica));
    std::vector<std::unique_ptr<SegmentMemory>> memories;
    for (int64_t r = 0; r < options_.num_replicas; ++r) {
      memories.push_back(std::make_unique<SegmentMemory>(pool_));
    }
    segment_memories_.push_back(std::move(memories));
  }
  for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
    for (size_t ipu = 0; ipu < program_->schedule.size(); ++ipu) {
      ipus_.push_back({replica, static_cast<int64_t>(ipu)});
    }
  }
  arenas_.resize(ipus_.size());
}

Executor::~Executor() { pool_->close(); }

int64_t Executor::arena_bytes() const {
  int64_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.num_bytes();
  return bytes;
}

void Executor::write_variable(VariableId id, int64_t replica, const at::Tensor& value) {
  memory_.write(id, replica, value);
}

at::Tensor Executor::read_variable(VariableId id, int64_t replica) const {
  return memory_.read(id, replica);
}

void Executor::set_scalar(ScalarId id, double value) { memory_.set_scalar(id, value); }

void Executor::set_rng_state(int64_t seed, int64_t counter) {
  seed_ = seed;
  counter_ = counter;
}

std::vector<Event> Executor::take_events() { return std::exchange(events_, {}); }

std::vector<int64_t> Executor::peak_link_items() const {
  std::vector<int64_t> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak());
  return peaks;
}

std::vector<int64_t> Executor::peak_link_bytes() const {
  std::vector<int64_t> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak_bytes());
  return peaks;
}

std::vector<at::Tensor> Executor::run(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  try {
    prepare(inputs, num_windows);
  } catch (...) {
    end_stream_of_call();
    throw;
  }
  threads_.run();
  std::vector<at::Tensor> results;
  for (OutputCollector& output : outputs_) results.push_back(output.take());
  clean_up();
  end_stream_of_call();
  // Weights that were trained keep their random numbers, also when a later window failed.
  counter_ += window_ * program_->micro_batches_per_window;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return results;
}

void Executor::find_ends() {
  first_reader_.assign(program_->inputs.size(), SegmentId{-1});
  is_window_output_.assign(program_->outputs.size(), false);
  for (size_t id = 0; id < program_->segments.size(); ++id) {
    const Segment& segment = program_->segments[id];
    for (const Load& load : segment.loads) {
      const auto* source = std::get_if<LoadInput>(&load.source);
      if (source == nullptr) continue;
      SegmentId& reader = first_reader_[source->input.value];
      if (reader.value < 0) reader = {static_cast<int64_t>(id)};
    }
    for (const Store& store : segment.stores) {
      const auto* target = std::get_if<StoreOutput>(&store.target);
      if (target == nullptr) continue;
      is_window_output_[target->output.value] = segment.kind == SegmentKind::kWindow;
    }
  }
}

void Executor::prepare(const std::vector<at::Tensor>& inputs, int64_t num_windows) {
  if (inputs.size() != program_->inputs.size()) {
    throw Error("The program takes " + std::to_string(program_->inputs.size()) +
                " inputs, but was given " + std::to_string(inputs.size()) + ".");
  }
  if (num_windows < 1) {
    throw Error("A call runs at least 1 window, not " + std::to_string(num_windows) + ".");
  }
  const int64_t num_micro_batches = num_windows * program_->micro_batches_per_window;
  const int64_t blocks = num_micro_batches * num_groups_;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!program_->inputs[i].is_batched) continue;
    if (inputs[i].dim() == 0 || inputs[i].size(0) % blocks != 0) {
      throw Error("Input " + program_->inputs[i].name + " is " + describe(inputs[i]) +
                  ", but its first dimension must be a multiple of " + std::to_string(blocks) +
                  ".");
    }
  }
  begin_stream_of_call(num_micro_batches);
  inputs_ = inputs;
  outputs_.clear();
  for (size_t id = 0; id < program_->outputs.size(); ++id) {
    outputs_.emplace_back(program_->outputs[id],
                          is_window_output_[id] ? num_windows : num_micro_batches,
                          options_.num_replicas);
  }
  num_windows_ = num_windows;
  prepare_spans();
  window_ = -1;
  is_done_ = false;
  caller_ = std::this_thread::get_id();
  caller_state_.emplace();
  finish_window();
}

void Executor::prepare_spans() {
  const int64_t now = now_ns();
  const int64_t pieces = num_windows_ * program_->micro_batches_per_window * options_.num_replicas;
  input_spans_.assign(program_->inputs.size(), std::vector<Span>(pieces, Span{now, now}));
  output_spans_.clear();
  for (const OutputCollector& output : outputs_) {
    output_spans_.emplace_back(output.num_pieces(), Span{now, now});
  }
}

void Executor::clean_up() {
  inputs_.clear();
  outputs_.clear();
  caller_state_.reset();
  if (!error_) return;
  for (LinkQueue& queue : queues_) queue.clear();
  for (auto& of_replica : frames_) {
    for (auto& frame : of_replica) frame->clear();
  }
  accumulators_.clear();
  memory_.roll_back();
  num_running_ = 0;
  for (VirtualIpu& ipu : ipus_) {
    ipu.is_running = false;
    ipu.taken.clear();
    ipu.given.clear();
  }
}

}  // namespace poptorch_emu
