#include "runtime/scheduling/scheduler.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/clock.h"
#include "common/errors.h"

namespace poptorch_emu {
namespace {

// Handing an action over, and waiting for its turn, takes some 10 us; actions of 10 us became
// slower by it, those of 100 us faster.
constexpr int64_t kWorthwhileNs = 50'000;

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
      choice_(choice),
      early_windows_(program),
      shortest_ns_(program.segments.size(), 0) {
  if (!follows_lists && Walks::are_possible(program)) {
    walks_.emplace(program, num_replicas, num_workers);
  }
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
    ipu.under_way.clear();
    for (Task& task : ipu.lanes) task.clear();
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
  if (is_of_walk(task)) {
    return walks_->has_turn(task) || wait_until([&] { return walks_->has_turn(task); });
  }
  Progress::Lock lock = progress_.lock();
  const VirtualIpu& ipu = ipu_of(task);
  while (!is_over_ && ipu.under_way.front() != task.lane) progress_.wait_for_change(lock);
  return !is_over_;
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
  early_windows_.note_complete_window();
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
  if ((micro_batch_actions_left_ == 0 || early_windows_.have_begun()) && !is_over_) {
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
  return program_.schedule[ipu.ipu][ipu.position];
}

// The steps of a walk need no lock: they are its worker's own, and who waits for his turn looks at
// that himself. False if the worker does not go on at once; the task is done all the same.
bool Scheduler::take_step(Task& task) {
  const int64_t worker = task.worker;
  const bool have_all_left = walks_->finish(task);
  progress_.note();
  if (early_windows_.are_any() && have_all_left) {
    const Progress::Lock lock = progress_.lock();
    early_windows_.leave(task.action.segment);
    progress_.announce();
  }
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
  const int64_t elapsed_ns = now_ns() - task.begun_ns;
  ++num_done_;
  busy_ns_ += elapsed_ns;
  int64_t& shortest_ns = shortest_ns_[task.action.segment.value];
  shortest_ns = shortest_ns == 0 ? elapsed_ns : std::min(shortest_ns, elapsed_ns);
  if (program_.at(task.action.segment).kind == SegmentKind::kMicroBatch) {
    --micro_batch_actions_left_;
    early_windows_.leave(task.action.segment);
  }
  VirtualIpu& ipu = ipu_of(task);
  ipu.under_way.pop_front();
  if (ipu.is_idle() && is_at_end(ipu)) ++ipus_at_end_;
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
  const bool is_of_window = segment.kind == SegmentKind::kWindow;
  // Nothing of this window may read these weights or add to their gradients any more.
  if (is_of_window && micro_batch_actions_left_ > 0 && !early_windows_.may_begin(id)) return false;
  if ((is_of_window || segment.is_collective) && !have_peers_arrived(ipu)) return false;
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

// Whether this replica runs the next action by its list; a window segment may be run by others.
bool Scheduler::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_.at(next_action(ipu).segment);
  if (segment.kind == SegmentKind::kMicroBatch) return !walks_;
  return std::find(segment.runners.begin(), segment.runners.end(), ipu.replica) !=
         segment.runners.end();
}

// Begins the next action of the IPU, if it can.
Task* Scheduler::begin_on(VirtualIpu& ipu, int64_t worker) {
  if (!is_ready(ipu)) return nullptr;
  const auto is_free = [&](const Task& task) {
    return std::find(ipu.under_way.begin(), ipu.under_way.end(), task.lane) == ipu.under_way.end();
  };
  Task& task = *std::find_if(ipu.lanes.begin(), ipu.lanes.end(), is_free);
  task.action = next_action(ipu);
  task.position = ipu.position;
  task.begun_ns = now_ns();
  early_windows_.note_begin(task.action.segment);
  for (LinkId id : program_.at(task.action.segment).incoming) {
    task.taken.push_back(queues_[id.value].pop(task.replica));
  }
  ipu.under_way.push_back(task.lane);
  move_to(ipu, ipu.position + 1);
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
}

void Scheduler::begin_window() {
  window_begun_ns_ = now_ns();
  num_done_ = busy_ns_ = 0;
  if (!choice_.is_alone()) end_of_rest_.notify_all();
  ipus_at_end_ = micro_batch_actions_left_ = 0;
  if (walks_) walks_->begin_window();
  early_windows_.begin_window();
  for (VirtualIpu& ipu : ipus_) {
    move_to(ipu, 0);
    if (is_at_end(ipu)) ++ipus_at_end_;
    for (const Action& action : program_.schedule[ipu.ipu]) {
      if (program_.at(action.segment).kind != SegmentKind::kMicroBatch) continue;
      ++micro_batch_actions_left_;
      // Of walks all through a segment count as one.
      if (!walks_ || action.micro_batch == 0) early_windows_.expect(action.segment);
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
