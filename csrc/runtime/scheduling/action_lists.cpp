#include "runtime/scheduling/action_lists.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "common/clock.h"

namespace poptorch_emu {

namespace {

std::map<CollectiveId, CollectiveQueue> collectives_of(const Program& program,
                                                       int64_t num_replicas) {
  std::set<CollectiveId> relayed;
  for (const Segment& segment : program.segments) relayed.insert(segment.relayed);
  std::map<CollectiveId, CollectiveQueue> found;
  for (size_t segment = 0; segment < program.segments.size(); ++segment) {
    const auto count = static_cast<int64_t>(program.segments[segment].collectives().size());
    for (int64_t index = 0; index < count; ++index) {
      const CollectiveId id{{static_cast<int64_t>(segment)}, index};
      found.emplace(id, CollectiveQueue(num_replicas, relayed.contains(id)));
    }
  }
  return found;
}

}  // namespace

ActionLists::ActionLists(const Program& program, int64_t num_replicas, bool has_micro_batches)
    : program_(program),
      has_micro_batches_(has_micro_batches),
      collectives_(collectives_of(program, num_replicas)) {
  for (const Segment& segment : program.segments) {
    // An exchange with other processes begins after all replicas have completed the one before.
    waits_for_replicas_.push_back(segment.kind == SegmentKind::kWindow || segment.relays() ||
                                  program.is_collective(segment));
  }
  for (const Link& link : program.links) queues_.emplace_back(link, num_replicas);
  for (int64_t replica = 0; replica < num_replicas; ++replica) {
    for (size_t ipu = 0; ipu < program.schedule.size(); ++ipu) {
      ipus_.push_back({{replica, static_cast<int64_t>(ipu)}});
    }
  }
}

void ActionLists::begin_window() {
  num_done_ = 0;
  for (VirtualIpu& ipu : ipus_) move_to(ipu, 0);
}

void ActionLists::clear() {
  for (LinkQueue& queue : queues_) queue.clear();
  for (auto& [id, queue] : collectives_) queue.clear();
  for (VirtualIpu& ipu : ipus_) {
    ipu.is_at_work = false;
    ipu.awaited = nullptr;
    ipu.task.clear();
  }
}

Task* ActionLists::begin_any(bool are_micro_batches_done) {
  const auto ready = std::find_if(ipus_.begin(), ipus_.end(), [&](const VirtualIpu& ipu) {
    return is_ready(ipu, are_micro_batches_done);
  });
  return ready == ipus_.end() ? nullptr : &begin(*ready);
}

Task* ActionLists::begin_next(const Task& task, bool are_micro_batches_done) {
  VirtualIpu& ipu = ipu_of(task);
  return is_ready(ipu, are_micro_batches_done) ? &begin(ipu) : nullptr;
}

void ActionLists::suspend(Task& task) {
  VirtualIpu& ipu = ipu_of(task);
  ipu.is_at_work = false;
  ipu.awaited = &collectives_.at({task.action.segment, task.num_collectives++});
  ipu.awaited->push(task.replica, std::move(task.part));
}

void ActionLists::finish(Task& task) {
  give_outputs(task);
  const Segment& segment = program_.at(task.action.segment);
  if (segment.relays()) collectives_.at(segment.relayed).give(std::exchange(task.arrived, {}));
  VirtualIpu& ipu = ipu_of(task);
  ipu.is_at_work = false;
  task.num_collectives = 0;
  move_to(ipu, ipu.position + 1);
}

std::string ActionLists::text() const {
  std::ostringstream out;
  for (const VirtualIpu& ipu : ipus_) {
    out << " Replica " << ipu.task.replica << ", IPU " << ipu.task.ipu << ": ";
    if (is_at_end(ipu)) {
      out << "at the end.";
    } else {
      const Action& action = list_of(ipu)[ipu.position];
      out << (ipu.awaited == nullptr ? "waits to run '" : "waits for other replicas in '")
          << program_.at(action.segment).name << "' for micro-batch " << action.micro_batch << ".";
    }
  }
  return out.str();
}

std::vector<LinkPeak> ActionLists::link_peaks() const {
  std::vector<LinkPeak> peaks;
  for (const LinkQueue& queue : queues_) peaks.push_back(queue.peak());
  return peaks;
}

ActionLists::VirtualIpu& ActionLists::ipu_of(const Task& task) {
  return ipus_[task.replica * static_cast<int64_t>(program_.schedule.size()) + task.ipu];
}

bool ActionLists::is_ready(const VirtualIpu& ipu, bool are_micro_batches_done) const {
  if (ipu.is_at_work || is_at_end(ipu)) return false;
  if (ipu.awaited != nullptr) return ipu.awaited->has_results(ipu.task.replica);
  const SegmentId id = list_of(ipu)[ipu.position].segment;
  const Segment& segment = program_.at(id);
  if (segment.kind == SegmentKind::kWindow && !are_micro_batches_done) return false;
  if (segment.relays() && !collectives_.at(segment.relayed).has_parts()) return false;
  return (!waits_for_replicas_[id.value] || have_replicas_arrived(ipu)) &&
         have_links(ipu.task.replica, segment);
}

// Returns whether every replica of this IPU has completed the actions before the next one.
bool ActionLists::have_replicas_arrived(const VirtualIpu& ipu) const {
  return std::all_of(ipus_.begin(), ipus_.end(), [&ipu](const VirtualIpu& other) {
    return other.task.ipu != ipu.task.ipu || other.position >= ipu.position;
  });
}

bool ActionLists::have_links(int64_t replica, const Segment& segment) const {
  const auto has_item = [&](LinkId link) { return queues_[link.value].has_item(replica); };
  const auto has_room = [&](LinkId link) { return queues_[link.value].has_room(replica); };
  return std::all_of(segment.incoming.begin(), segment.incoming.end(), has_item) &&
         std::all_of(segment.outgoing.begin(), segment.outgoing.end(), has_room);
}

// Returns whether this replica runs the next action by its list. Otherwise other replicas run a
// window segment, or the first replica relays the parts of all.
bool ActionLists::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_.at(list_of(ipu)[ipu.position].segment);
  if (segment.relays()) return ipu.task.replica == 0;
  if (segment.kind == SegmentKind::kMicroBatch) return has_micro_batches_;
  return std::find(segment.runners.begin(), segment.runners.end(), ipu.task.replica) !=
         segment.runners.end();
}

void ActionLists::move_to(VirtualIpu& ipu, size_t position) {
  ipu.position = position;
  while (!is_at_end(ipu) && !takes_part(ipu)) ++ipu.position;
  if (is_at_end(ipu)) ++num_done_;
}

Task& ActionLists::begin(VirtualIpu& ipu) {
  if (ipu.awaited != nullptr) return resume(ipu);
  Task& task = ipu.task;
  task.action = list_of(ipu)[ipu.position];
  task.begun_ns = now_ns();
  for (LinkId id : program_.at(task.action.segment).incoming) {
    task.taken.push_back(queues_[id.value].pop(task.replica));
  }
  const CollectiveId relayed = program_.at(task.action.segment).relayed;
  if (relayed.index >= 0) task.arrived = collectives_.at(relayed).take_parts();
  ipu.is_at_work = true;
  return task;
}

Task& ActionLists::resume(VirtualIpu& ipu) {
  ipu.task.arrived = ipu.awaited->pop(ipu.task.replica);
  ipu.awaited = nullptr;
  ipu.is_at_work = true;
  return ipu.task;
}

void ActionLists::give_outputs(Task& task) {
  const std::vector<LinkId>& outgoing = program_.at(task.action.segment).outgoing;
  for (size_t i = 0; i < outgoing.size(); ++i) {
    const Link& link = program_.links[outgoing[i].value];
    LinkQueue& queue = queues_[outgoing[i].value];
    const Segment& producer = program_.at(link.producer);
    // The items of a single runner reach every runner of the consumer.
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

}  // namespace poptorch_emu
