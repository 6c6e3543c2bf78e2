#include "runtime/scheduler.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/errors.h"

namespace poptorch_emu {

Scheduler::Scheduler(const Program& program, int64_t num_replicas, const HostDesk& desk,
                     const ResultStream& stream)
    : program_(program), desk_(desk), stream_(stream) {
  for (const Link& link : program.links) queues_.emplace_back(link, num_replicas);
  for (int64_t replica = 0; replica < num_replicas; ++replica) {
    for (size_t ipu = 0; ipu < program.schedule.size(); ++ipu) {
      ipus_.push_back({{replica, static_cast<int64_t>(ipu)}});
    }
  }
}

void Scheduler::begin_call(int64_t num_windows) {
  const std::lock_guard lock(mutex_);
  num_windows_ = num_windows;
  window_ = 0;
  is_done_ = false;
  begin_window();
}

std::exception_ptr Scheduler::end_call() {
  const std::lock_guard lock(mutex_);
  if (!error_) return nullptr;
  for (LinkQueue& queue : queues_) queue.clear();
  for (VirtualIpu& ipu : ipus_) {
    ipu.task.taken.clear();
    ipu.task.given.clear();
  }
  return std::exchange(error_, nullptr);
}

Task* Scheduler::take(int64_t worker) {
  std::unique_lock lock(mutex_);
  while (!has_ended() && !is_wanted_at_desk(worker)) {
    // Asked once: a result may be taken meanwhile, and then nobody is to blame.
    const bool is_paused = stream_.is_full();
    VirtualIpu* ipu = is_paused ? nullptr : find_ready();
    if (ipu != nullptr) {
      ++num_running_;
      begin(*ipu);
      return &ipu->task;
    }
    if (num_running_ == 0 && !is_paused) {
      error_ = deadlock();
      wake_waiting();
      break;
    }
    ++num_waiting_;
    progress_.wait(lock);
    --num_waiting_;
  }
  return nullptr;
}

bool Scheduler::is_over() const {
  const std::lock_guard lock(mutex_);
  return has_ended();
}

Scheduler::Next Scheduler::finish(Task& task, int64_t worker) {
  const std::lock_guard lock(mutex_);
  VirtualIpu& ipu = ipu_of(task);
  give_outputs(task);
  if (program_.at(task.action.segment).kind == SegmentKind::kMicroBatch) {
    --micro_batch_actions_left_;
  }
  ipu.is_running = false;
  move_to(ipu, ipu.position + 1);
  if (ipus_at_end_ == static_cast<int64_t>(ipus_.size())) return Next::kEndWindow;
  wake_waiting();
  if (!has_ended() && !is_wanted_at_desk(worker) && !stream_.is_full() && is_ready(ipu)) {
    begin(ipu);
    return Next::kSameIpu;
  }
  leave(ipu);
  return Next::kAnother;
}

void Scheduler::begin_next_window(Task& task) {
  const std::lock_guard lock(mutex_);
  leave(ipu_of(task));
  ++window_;
  if (window_ == num_windows_) {
    is_done_ = true;
  } else {
    begin_window();
  }
  wake_waiting();
}

void Scheduler::fail(Task& task, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  leave(ipu_of(task));
  wake_waiting();
}

void Scheduler::wake() {
  const std::lock_guard lock(mutex_);
  wake_waiting();
}

std::vector<int64_t> Scheduler::peak_link_items() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak());
  return peaks;
}

std::vector<int64_t> Scheduler::peak_link_bytes() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak_bytes());
  return peaks;
}

Scheduler::VirtualIpu& Scheduler::ipu_of(const Task& task) {
  return ipus_[task.replica * program_.schedule.size() + task.ipu];
}

const Action& Scheduler::next_action(const VirtualIpu& ipu) const {
  return program_.schedule[ipu.task.ipu][ipu.position];
}

Scheduler::VirtualIpu* Scheduler::find_ready() {
  for (VirtualIpu& ipu : ipus_) {
    if (!ipu.is_running && is_ready(ipu)) return &ipu;
  }
  return nullptr;
}

bool Scheduler::is_ready(const VirtualIpu& ipu) const {
  if (ipu.position == program_.schedule[ipu.task.ipu].size()) return false;
  const Segment& segment = program_.at(next_action(ipu).segment);
  if (segment.kind == SegmentKind::kWindow) {
    // Nothing of this window may read weights or add gradients any more.
    if (micro_batch_actions_left_ > 0 || !have_peers_arrived(ipu)) return false;
  } else if (segment.is_collective && !have_peers_arrived(ipu)) {
    return false;
  }
  return have_links(segment, ipu.task.replica);
}

// Whether every replica of this IPU is through with what comes before the next action.
bool Scheduler::have_peers_arrived(const VirtualIpu& ipu) const {
  return std::all_of(ipus_.begin(), ipus_.end(), [&ipu](const VirtualIpu& other) {
    return other.task.ipu != ipu.task.ipu || other.position >= ipu.position;
  });
}

bool Scheduler::have_links(const Segment& segment, int64_t replica) const {
  const auto has_item = [&](LinkId id) { return queues_[id.value].has_item(replica); };
  const auto has_room = [&](LinkId id) { return queues_[id.value].has_room(replica); };
  return std::all_of(segment.incoming.begin(), segment.incoming.end(), has_item) &&
         std::all_of(segment.outgoing.begin(), segment.outgoing.end(), has_room);
}

// Whether this replica runs the next action; a window segment may be run by others.
bool Scheduler::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_.at(next_action(ipu).segment);
  return segment.kind == SegmentKind::kMicroBatch ||
         std::find(segment.runners.begin(), segment.runners.end(), ipu.task.replica) !=
             segment.runners.end();
}

void Scheduler::begin(VirtualIpu& ipu) {
  ipu.is_running = true;
  Task& task = ipu.task;
  task.action = next_action(ipu);
  task.window = window_;
  task.micro_batch_of_call = window_ * program_.micro_batches_per_window + task.action.micro_batch;
  for (LinkId id : program_.at(task.action.segment).incoming) {
    task.taken.push_back(queues_[id.value].pop(task.replica));
  }
}

// The worker goes on elsewhere.
void Scheduler::leave(VirtualIpu& ipu) {
  ipu.is_running = false;
  --num_running_;
}

void Scheduler::give_outputs(Task& task) {
  const std::vector<LinkId>& outgoing = program_.at(task.action.segment).outgoing;
  for (size_t i = 0; i < outgoing.size(); ++i) {
    const Link& link = program_.links[outgoing[i].value];
    LinkQueue& queue = queues_[outgoing[i].value];
    const Segment& producer = program_.at(link.producer);
    // What a single runner sends reaches every runner of the consumer.
    if (producer.kind == SegmentKind::kWindow && producer.runners.size() == 1) {
      for (int64_t receiver : program_.at(link.consumer).runners) {
        queue.push(receiver, task.given[i]);
      }
    } else {
      queue.push(task.replica, std::move(task.given[i]));
    }
  }
  task.given.clear();
}

void Scheduler::move_to(VirtualIpu& ipu, size_t position) {
  const size_t end = program_.schedule[ipu.task.ipu].size();
  ipu.position = position;
  while (ipu.position < end && !takes_part(ipu)) ++ipu.position;
  if (ipu.position == end) ++ipus_at_end_;
}

void Scheduler::begin_window() {
  ipus_at_end_ = 0;
  micro_batch_actions_left_ = 0;
  for (VirtualIpu& ipu : ipus_) {
    move_to(ipu, 0);
    for (const Action& action : program_.schedule[ipu.task.ipu]) {
      if (program_.at(action.segment).kind == SegmentKind::kMicroBatch) {
        ++micro_batch_actions_left_;
      }
    }
  }
}

void Scheduler::wake_waiting() {
  if (num_waiting_ > 0) progress_.notify_all();
}

std::exception_ptr Scheduler::deadlock() const {
  std::ostringstream out;
  out << "The schedule cannot go on: no virtual IPU is ready.";
  for (const VirtualIpu& ipu : ipus_) {
    out << " Replica " << ipu.task.replica << ", IPU " << ipu.task.ipu << ": ";
    if (ipu.position == program_.schedule[ipu.task.ipu].size()) {
      out << "at the end.";
    } else {
      const Action& action = next_action(ipu);
      out << "waits to run '" << program_.at(action.segment).name << "' for micro-batch "
          << action.micro_batch << ".";
    }
  }
  return std::make_exception_ptr(Error(out.str()));
}

}  // namespace poptorch_emu
