#include "runtime/scheduler.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Handing an action over, and waiting for its turn, takes some 10 us; actions of 10 us became
// slower by it, those of 100 us faster.
constexpr int64_t kWorthwhileNs = 50'000;

// Going to sleep and being woken takes some 10 us, and often the next change comes sooner.
constexpr int64_t kSpinNs = 50'000;
constexpr int kLooksBetweenClocks = 16;

void pause_shortly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Scheduler::Scheduler(const Program& program, int64_t num_replicas, int64_t num_workers,
                     WorkerChoice::Among choice, const HostDesk& desk, const ResultStream& stream)
    : program_(program),
      desk_(desk),
      stream_(stream),
      spins_(num_workers <= static_cast<int64_t>(std::thread::hardware_concurrency())),
      choice_(choice),
      shortest_ns_(program.segments.size(), 0) {
  for (const Link& link : program.links) queues_.emplace_back(link, num_replicas);
  for (int64_t replica = 0; replica < num_replicas; ++replica) {
    for (size_t number = 0; number < program.schedule.size(); ++number) {
      const auto ipu = static_cast<int64_t>(number);
      VirtualIpu& added = ipus_.emplace_back(VirtualIpu{replica, ipu, {}, 0, {}});
      for (int64_t lane = 0; lane < num_workers; ++lane) {
        added.lanes.push_back({replica, ipu, lane});
      }
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
  interruption_ = nullptr;
  if (!error_) return nullptr;
  for (LinkQueue& queue : queues_) queue.clear();
  for (VirtualIpu& ipu : ipus_) {
    ipu.under_way.clear();
    for (Task& task : ipu.lanes) {
      task.taken.clear();
      task.given.clear();
    }
  }
  num_running_ = 0;
  return std::exchange(error_, nullptr);
}

bool Scheduler::is_alone() const {
  const std::lock_guard lock(mutex_);
  return choice_.is_alone();
}

Task* Scheduler::take(int64_t worker) {
  std::unique_lock lock(mutex_);
  while (!has_ended() && !is_wanted_at_desk(worker)) {
    if (is_to_rest(worker)) {
      end_of_rest_.wait(lock);
      continue;
    }
    // Asked once: a result may be taken meanwhile, and then nobody is to blame.
    const bool is_paused = stream_.is_full();
    VirtualIpu* ipu = is_paused ? nullptr : find_ready();
    if (ipu != nullptr) {
      ++num_running_;
      return &begin(*ipu);
    }
    if (num_running_ == 0 && !is_paused) {
      error_ = deadlock();
      wake_waiting();
      break;
    }
    wait_for_change(lock, worker == 0 && desk_.looks());
  }
  return nullptr;
}

bool Scheduler::is_over() const {
  const std::lock_guard lock(mutex_);
  return has_ended();
}

bool Scheduler::wait_for_turn(const Task& task) {
  std::unique_lock lock(mutex_);
  const VirtualIpu& ipu = ipu_of(task);
  while (!has_ended() && ipu.under_way.front() != task.lane) wait_for_change(lock, false);
  return !has_ended();
}

bool Scheduler::wait_until(const std::function<bool()>& holds) {
  if (holds()) return true;
  // Before it looks again: whoever changes something afterwards sees that it is looked for.
  ++num_observers_;
  std::unique_lock lock(mutex_);
  while (!has_ended() && !holds()) wait_for_change(lock, false);
  --num_observers_;
  return !has_ended();
}

Scheduler::Next Scheduler::finish(Task*& task, int64_t worker) {
  const std::lock_guard lock(mutex_);
  VirtualIpu& ipu = ipu_of(*task);
  give_outputs(*task);
  const int64_t elapsed_ns = now_ns() - task->begun_ns;
  ++num_done_;
  busy_ns_ += elapsed_ns;
  int64_t& shortest_ns = shortest_ns_[task->action.segment.value];
  shortest_ns = shortest_ns == 0 ? elapsed_ns : std::min(shortest_ns, elapsed_ns);
  if (program_.at(task->action.segment).kind == SegmentKind::kMicroBatch) {
    --micro_batch_actions_left_;
  }
  ipu.under_way.pop_front();
  if (ipu.is_idle() && is_at_end(ipu)) ++ipus_at_end_;
  if (ipus_at_end_ == static_cast<int64_t>(ipus_.size())) return Next::kEndWindow;
  wake_waiting();
  if (!has_ended() && !is_wanted_at_desk(worker) && !stream_.is_full() && is_ready(ipu)) {
    task = &begin(ipu);
    return Next::kSameIpu;
  }
  --num_running_;
  return Next::kAnother;
}

void Scheduler::begin_next_window() {
  const std::lock_guard lock(mutex_);
  --num_running_;
  ++window_;
  choice_.note(now_ns() - window_begun_ns_, busy_ns_ / std::max<int64_t>(num_done_, 1));
  if (interruption_) {
    error_ = std::exchange(interruption_, nullptr);
  } else if (window_ == num_windows_) {
    is_done_ = true;
  } else {
    begin_window();
  }
  wake_waiting();
}

void Scheduler::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  --num_running_;
  wake_waiting();
}

bool Scheduler::interrupt(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (micro_batch_actions_left_ == 0 && !has_ended()) {
    interruption_ = std::move(error);
    return false;
  }
  if (!error_) error_ = std::move(error);
  wake_waiting();
  return true;
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
  return ipus_[task.replica * static_cast<int64_t>(program_.schedule.size()) + task.ipu];
}

const Action& Scheduler::next_action(const VirtualIpu& ipu) const {
  return program_.schedule[ipu.ipu][ipu.position];
}

// An IPU that is idle comes before one that is at work.
Scheduler::VirtualIpu* Scheduler::find_ready() {
  VirtualIpu* at_work = nullptr;
  for (VirtualIpu& ipu : ipus_) {
    if ((at_work != nullptr && !ipu.is_idle()) || !is_ready(ipu)) continue;
    if (ipu.is_idle()) return &ipu;
    at_work = &ipu;
  }
  return at_work;
}

bool Scheduler::is_ready(const VirtualIpu& ipu) const {
  if (is_at_end(ipu)) return false;
  const SegmentId id = next_action(ipu).segment;
  const Segment& segment = program_.at(id);
  if (!has_lane(ipu, id)) return false;
  if (segment.kind == SegmentKind::kWindow) {
    // Nothing of this window may read weights or add gradients any more.
    if (micro_batch_actions_left_ > 0 || !have_peers_arrived(ipu)) return false;
  } else if (segment.is_collective && !have_peers_arrived(ipu)) {
    return false;
  }
  return have_links(ipu, id);
}

// Whether the IPU may begin an action beside those that are under way.
bool Scheduler::has_lane(const VirtualIpu& ipu, SegmentId next) const {
  if (ipu.is_idle()) return true;
  const SegmentId first = ipu.lanes[ipu.under_way.front()].action.segment;
  return ipu.under_way.size() < ipu.lanes.size() && program_.at(next).may_overlap &&
         program_.at(first).may_overlap &&
         std::min(shortest_ns_[next.value], shortest_ns_[first.value]) >= kWorthwhileNs;
}

// Whether every replica of this IPU is through with what comes before the next action.
bool Scheduler::have_peers_arrived(const VirtualIpu& ipu) const {
  return std::all_of(ipus_.begin(), ipus_.end(), [&ipu](const VirtualIpu& other) {
    return other.ipu != ipu.ipu || other.done_before() >= ipu.position;
  });
}

bool Scheduler::have_links(const VirtualIpu& ipu, SegmentId id) const {
  // Those of the same segment that are under way will put something into its links, too.
  const auto is_same = [&](int64_t lane) { return ipu.lanes[lane].action.segment == id; };
  const int64_t num_coming = std::count_if(ipu.under_way.begin(), ipu.under_way.end(), is_same);
  const auto has_item = [&](LinkId link) { return queues_[link.value].has_item(ipu.replica); };
  const auto has_room = [&](LinkId link) {
    return queues_[link.value].has_room(ipu.replica, 1 + num_coming);
  };
  const Segment& segment = program_.at(id);
  return std::all_of(segment.incoming.begin(), segment.incoming.end(), has_item) &&
         std::all_of(segment.outgoing.begin(), segment.outgoing.end(), has_room);
}

// Whether this replica runs the next action; a window segment may be run by others.
bool Scheduler::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_.at(next_action(ipu).segment);
  return segment.kind == SegmentKind::kMicroBatch ||
         std::find(segment.runners.begin(), segment.runners.end(), ipu.replica) !=
             segment.runners.end();
}

Task& Scheduler::begin(VirtualIpu& ipu) {
  const auto is_free = [&](const Task& task) {
    return std::find(ipu.under_way.begin(), ipu.under_way.end(), task.lane) == ipu.under_way.end();
  };
  Task& task = *std::find_if(ipu.lanes.begin(), ipu.lanes.end(), is_free);
  task.action = next_action(ipu);
  task.position = ipu.position;
  task.begun_ns = now_ns();
  task.is_alone = choice_.is_alone();
  task.window = window_;
  task.micro_batch_of_call = window_ * program_.micro_batches_per_window + task.action.micro_batch;
  for (LinkId id : program_.at(task.action.segment).incoming) {
    task.taken.push_back(queues_[id.value].pop(task.replica));
  }
  ipu.under_way.push_back(task.lane);
  move_to(ipu, ipu.position + 1);
  return task;
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
  ipu.position = position;
  while (!is_at_end(ipu) && !takes_part(ipu)) ++ipu.position;
}

void Scheduler::begin_window() {
  window_begun_ns_ = now_ns();
  num_done_ = 0;
  busy_ns_ = 0;
  if (!choice_.is_alone()) end_of_rest_.notify_all();
  ipus_at_end_ = 0;
  micro_batch_actions_left_ = 0;
  for (VirtualIpu& ipu : ipus_) {
    move_to(ipu, 0);
    if (is_at_end(ipu)) ++ipus_at_end_;
    for (const Action& action : program_.schedule[ipu.ipu]) {
      if (program_.at(action.segment).kind == SegmentKind::kMicroBatch) {
        ++micro_batch_actions_left_;
      }
    }
  }
}

// Waits until `wake_waiting` is called, or perhaps not as long. Who looks up does so now and then.
void Scheduler::wait_for_change(std::unique_lock<std::mutex>& lock, bool looks_up) {
  const uint64_t seen = num_changes_;
  if (spins_) {
    lock.unlock();
    const int64_t end_ns = now_ns() + kSpinNs;
    for (int looks = 1; num_changes_ == seen; ++looks) {
      if (looks % kLooksBetweenClocks == 0 && now_ns() >= end_ns) break;
      pause_shortly();
    }
    lock.lock();
    if (num_changes_ != seen) return;
  }
  ++num_waiting_;
  if (looks_up) {
    progress_.wait_for(lock, std::chrono::milliseconds(100));
  } else {
    progress_.wait(lock);
  }
  --num_waiting_;
}

void Scheduler::wake_waiting() {
  ++num_changes_;
  if (num_waiting_ > 0) progress_.notify_all();
  if (has_ended()) end_of_rest_.notify_all();
}

std::exception_ptr Scheduler::deadlock() const {
  std::ostringstream out;
  out << "The schedule cannot go on: no virtual IPU is ready.";
  for (const VirtualIpu& ipu : ipus_) {
    out << " Replica " << ipu.replica << ", IPU " << ipu.ipu << ": ";
    if (is_at_end(ipu)) {
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
