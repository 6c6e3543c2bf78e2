#include "runtime/scheduling/scheduler.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/clock.h"
#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Most actions that a worker waits for are over sooner.
constexpr int64_t kSpinNs = 50'000;

}  // namespace

Scheduler::Scheduler(const Program& program, int64_t num_replicas, int64_t num_workers,
                     bool follows_lists, WorkerChoice::Among choice, const HostDesk& desk,
                     const ResultStream& stream, SharedLoops& loops)
    : program_(program),
      desk_(desk),
      stream_(stream),
      loops_(loops),
      progress_(num_workers, kSpinNs),
      choice_(choice) {
  if (!follows_lists && Walks::are_possible(program)) {
    walks_.emplace(program, num_replicas, num_workers);
  }
  for (const Link& link : program.links) queues_.emplace_back(link, num_replicas);
  for (int64_t replica = 0; replica < num_replicas; ++replica) {
    for (size_t number = 0; number < program.schedule.size(); ++number) {
      ipus_.push_back({{replica, static_cast<int64_t>(number)}});
    }
  }
}

void Scheduler::begin_call(int64_t num_windows) {
  const Progress::Lock lock = progress_.lock();
  num_windows_ = num_windows;
  window_ = 0;
  is_over_ = false;
  begin_window();
}

std::exception_ptr Scheduler::end_call() {
  const Progress::Lock lock = progress_.lock();
  interruption_ = nullptr;
  if (!error_) return nullptr;
  for (LinkQueue& queue : queues_) queue.clear();
  for (VirtualIpu& ipu : ipus_) {
    ipu.is_at_work = false;
    ipu.task.clear();
  }
  if (walks_) walks_->clear();
  num_running_ = 0;
  return std::exchange(error_, nullptr);
}

bool Scheduler::is_alone() const {
  const Progress::Lock lock = progress_.lock();
  return choice_.is_alone();
}

Task* Scheduler::take(int64_t worker) {
  Progress::Lock lock = progress_.lock();
  while (!is_over_ && !is_wanted_at_desk(worker)) {
    if (is_to_rest(worker)) {
      end_of_rest_.wait(lock);
      continue;
    }
    // Asked once: a result may be taken meanwhile, and then nobody is to blame.
    const bool is_paused = stream_.is_full();
    if (Task* const task = is_paused ? nullptr : begin_next(worker)) {
      ++num_running_;
      return task;
    }
    if (num_running_ == 0 && !is_paused && !are_micro_batches_left()) {
      end_with(deadlock());
      break;
    }
    if (!is_paused && is_walking(worker)) {
      lock.unlock();
      wait_until([&] { return walks_->is_ready(worker) || is_wanted_at_desk(worker); });
      lock.lock();
    } else {
      progress_.wait_for_change(lock, worker == 0 && desk_.looks(),
                                [this] { return loops_.help(); });
    }
  }
  return nullptr;
}

bool Scheduler::wait_for_turn(const Task& task) {
  if (!is_of_walk(task)) return !is_over_;
  return walks_->has_turn(task) || wait_until([&] { return walks_->has_turn(task); });
}

bool Scheduler::wait_until(const std::function<bool()>& holds) {
  progress_.wait_until([&] { return is_over_ || holds(); });
  return !is_over_;
}

Scheduler::Next Scheduler::finish(Task*& task, int64_t worker) {
  const bool is_step = is_of_walk(*task);
  if (is_step && take_step(*task)) return Next::kGoOn;
  const Progress::Lock lock = progress_.lock();
  is_step ? note_walk(worker) : leave(*task);
  if (micro_batch_actions_left_ == 0 && ipus_at_end_ == static_cast<int64_t>(ipus_.size())) {
    return Next::kEndWindow;
  }
  progress_.announce();
  if (!is_over_ && !is_wanted_at_desk(worker) && !stream_.is_full()) {
    if (Task* const next = is_step ? begin_next(worker) : begin_on(ipu_of(*task), worker)) {
      task = next;
      return Next::kGoOn;
    }
  }
  --num_running_;
  return Next::kAnother;
}

void Scheduler::begin_next_window() {
  const Progress::Lock lock = progress_.lock();
  --num_running_;
  ++window_;
  choice_.note(now_ns() - window_begun_ns_, busy_ns_ / std::max<int64_t>(num_done_, 1));
  if (interruption_ || window_ == num_windows_) {
    end_with(std::exchange(interruption_, nullptr));
  } else {
    begin_window();
    progress_.announce();
  }
}

void Scheduler::fail(std::exception_ptr error) {
  const Progress::Lock lock = progress_.lock();
  --num_running_;
  end_with(std::move(error));
}

bool Scheduler::interrupt(std::exception_ptr error) {
  const Progress::Lock lock = progress_.lock();
  if (micro_batch_actions_left_ == 0 && !is_over_) {
    interruption_ = std::move(error);
    return false;
  }
  end_with(std::move(error));
  return true;
}

void Scheduler::wake() {
  const Progress::Lock lock = progress_.lock();
  progress_.announce();
}

std::vector<int64_t> Scheduler::peak_link_items() const {
  const Progress::Lock lock = progress_.lock();
  std::vector<int64_t> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak());
  return peaks;
}

std::vector<int64_t> Scheduler::peak_link_bytes() const {
  const Progress::Lock lock = progress_.lock();
  std::vector<int64_t> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak_bytes());
  return peaks;
}

Scheduler::VirtualIpu& Scheduler::ipu_of(const Task& task) {
  return ipus_[task.replica * static_cast<int64_t>(program_.schedule.size()) + task.ipu];
}

const Action& Scheduler::next_action(const VirtualIpu& ipu) const {
  return program_.schedule[ipu.task.ipu][ipu.position];
}

// The steps of a walk need no lock: they are its worker's own, and who waits for his turn looks at
// that himself. False if the worker does not go on at once; the task is done all the same.
bool Scheduler::take_step(Task& task) {
  const int64_t worker = task.worker;
  walks_->finish(task);
  progress_.note();
  if (is_over_ || is_wanted_at_desk(worker) || stream_.is_full()) return false;
  if (!walks_->is_walking(worker) || !walks_->is_ready(worker)) return false;
  begin(walks_->begin(worker), worker);
  return true;
}

// Counts the worker's walk, if it has come to its end.
void Scheduler::note_walk(int64_t worker) {
  if (walks_->is_walking(worker)) return;
  micro_batch_actions_left_ -= walks_->num_steps();
  num_done_ += walks_->num_steps();
  busy_ns_ += now_ns() - walks_->begun_ns(worker);
}

// Has the IPU of the task be through with it.
void Scheduler::leave(Task& task) {
  give_outputs(task);
  ++num_done_;
  busy_ns_ += now_ns() - task.begun_ns;
  if (program_.at(task.action.segment).kind == SegmentKind::kMicroBatch) {
    --micro_batch_actions_left_;
  }
  VirtualIpu& ipu = ipu_of(task);
  ipu.is_at_work = false;
  move_to(ipu, ipu.position + 1);
}

// A worker stays with its micro-batch, also while that waits for its turn.
Task* Scheduler::begin_next(int64_t worker) {
  if (walks_ && !walks_->is_walking(worker) && walks_->are_left()) walks_->begin_walk(worker);
  if (is_walking(worker)) {
    return walks_->is_ready(worker) ? &begin(walks_->begin(worker), worker) : nullptr;
  }
  VirtualIpu* const ipu = find_ready();
  return ipu == nullptr ? nullptr : begin_on(*ipu, worker);
}

Scheduler::VirtualIpu* Scheduler::find_ready() {
  const auto found = std::find_if(ipus_.begin(), ipus_.end(),
                                  [this](const VirtualIpu& ipu) { return is_ready(ipu); });
  return found == ipus_.end() ? nullptr : &*found;
}

bool Scheduler::is_ready(const VirtualIpu& ipu) const {
  if (ipu.is_at_work || is_at_end(ipu)) return false;
  const SegmentId id = next_action(ipu).segment;
  const Segment& segment = program_.at(id);
  const bool is_of_window = segment.kind == SegmentKind::kWindow;
  // Nothing of this window may read these weights or add to their gradients any more.
  if (is_of_window && micro_batch_actions_left_ > 0) return false;
  if ((is_of_window || segment.is_collective) && !have_peers_arrived(ipu)) return false;
  return have_links(ipu.task.replica, id);
}

// Whether every replica of this IPU is through with what comes before the next action.
bool Scheduler::have_peers_arrived(const VirtualIpu& ipu) const {
  return std::all_of(ipus_.begin(), ipus_.end(), [&ipu](const VirtualIpu& other) {
    return other.task.ipu != ipu.task.ipu || other.position >= ipu.position;
  });
}

bool Scheduler::have_links(int64_t replica, SegmentId id) const {
  const auto has_item = [&](LinkId link) { return queues_[link.value].has_item(replica); };
  const auto has_room = [&](LinkId link) { return queues_[link.value].has_room(replica); };
  const Segment& segment = program_.at(id);
  return std::all_of(segment.incoming.begin(), segment.incoming.end(), has_item) &&
         std::all_of(segment.outgoing.begin(), segment.outgoing.end(), has_room);
}

// Whether this replica runs the next action by its list; a window segment may be run by others.
bool Scheduler::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_.at(next_action(ipu).segment);
  if (segment.kind == SegmentKind::kMicroBatch) return !walks_;
  return std::find(segment.runners.begin(), segment.runners.end(), ipu.task.replica) !=
         segment.runners.end();
}

// Begins the next action of the IPU, if it can.
Task* Scheduler::begin_on(VirtualIpu& ipu, int64_t worker) {
  if (!is_ready(ipu)) return nullptr;
  Task& task = ipu.task;
  task.action = next_action(ipu);
  task.begun_ns = now_ns();
  for (LinkId id : program_.at(task.action.segment).incoming) {
    task.taken.push_back(queues_[id.value].pop(task.replica));
  }
  ipu.is_at_work = true;
  return &begin(task, worker);
}

Task& Scheduler::begin(Task& task, int64_t worker) const {
  task.worker = worker;
  task.is_alone = choice_.is_alone();
  task.window = window_;
  task.micro_batch_of_call = window_ * program_.micro_batches_per_window + task.action.micro_batch;
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
  if (is_at_end(ipu)) ++ipus_at_end_;
}

void Scheduler::begin_window() {
  window_begun_ns_ = now_ns();
  num_done_ = busy_ns_ = 0;
  if (!choice_.is_alone()) end_of_rest_.notify_all();
  ipus_at_end_ = micro_batch_actions_left_ = 0;
  if (walks_) walks_->begin_window();
  for (VirtualIpu& ipu : ipus_) {
    move_to(ipu, 0);
    for (const Action& action : program_.schedule[ipu.task.ipu]) {
      if (program_.at(action.segment).kind == SegmentKind::kMicroBatch) ++micro_batch_actions_left_;
    }
  }
}

// The call is over, with the first error, if there is one.
void Scheduler::end_with(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  is_over_ = true;
  progress_.announce();
  end_of_rest_.notify_all();
}

std::exception_ptr Scheduler::deadlock() const {
  std::ostringstream out;
  out << "The schedule cannot go on: no virtual IPU is ready.";
  for (const VirtualIpu& ipu : ipus_) {
    out << " Replica " << ipu.task.replica << ", IPU " << ipu.task.ipu << ": ";
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
