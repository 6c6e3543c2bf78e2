#include "runtime/scheduling/walks.h"

#include <algorithm>
#include <map>
#include <set>
#include <variant>

#include "common/clock.h"
#include "runtime/gradients/accumulators.h"

namespace poptorch_emu {
namespace {

bool is_of_micro_batches(const Program& program, SegmentId id) {
  return program.at(id).kind == SegmentKind::kMicroBatch;
}

// Whether each link that touches a segment of micro-batches lies between two of them, and carries
// whole values.
bool have_own_links(const Program& program) {
  return std::all_of(program.links.begin(), program.links.end(), [&](const Link& link) {
    const bool is_given = is_of_micro_batches(program, link.producer);
    const bool is_taken = is_of_micro_batches(program, link.consumer);
    return is_given == is_taken && !(is_given && link.is_sharded);
  });
}

// Which segments of micro-batches read or write each variable.
struct Users {
  std::map<VariableId, std::set<int64_t>> of_variable;
  std::set<VariableId> written;

  void note(const Segment& segment, int64_t id) {
    for (const Load& load : segment.loads) {
      if (const auto* source = std::get_if<LoadVariable>(&load.source)) {
        of_variable[source->variable].insert(id);
      }
    }
    for (const Store& store : segment.stores) {
      const auto* target = std::get_if<StoreVariable>(&store.target);
      if (target == nullptr) continue;
      of_variable[target->variable].insert(id);
      written.insert(target->variable);
    }
  }

  bool write_only_their_own() const {
    return std::all_of(written.begin(), written.end(),
                       [&](VariableId id) { return of_variable.at(id).size() == 1; });
  }
};

// The segments of micro-batches, each behind those that it gets something from, the first ones
// first.
std::vector<SegmentId> in_order(const Program& program) {
  std::vector<int64_t> num_missing(program.segments.size(), 0);
  for (const Link& link : program.links) ++num_missing[link.consumer.value];
  std::set<int64_t> ready;
  for (size_t id = 0; id < program.segments.size(); ++id) {
    const SegmentId segment{static_cast<int64_t>(id)};
    if (is_of_micro_batches(program, segment) && num_missing[id] == 0) ready.insert(segment.value);
  }
  std::vector<SegmentId> order;
  while (!ready.empty()) {
    const SegmentId next{*ready.begin()};
    ready.erase(ready.begin());
    order.push_back(next);
    for (LinkId id : program.at(next).outgoing) {
      const int64_t consumer = program.links[id.value].consumer.value;
      if (--num_missing[consumer] == 0) ready.insert(consumer);
    }
  }
  return order;
}

// Whether micro-batches may store in any order what a segment stores: pieces of outputs, which have
// places of their own, and parts of sums that see to the order themselves.
bool stores_in_any_order(const Program& program, const Segment& segment) {
  return std::all_of(segment.stores.begin(), segment.stores.end(), [&](const Store& store) {
    if (const auto* output = std::get_if<StoreOutput>(&store.target)) {
      return program.outputs[output->output.value].mode != OutputMode::kSum;
    }
    if (const auto* sum = std::get_if<Accumulate>(&store.target)) {
      return Accumulators::take_any_order(program, sum->accumulator);
    }
    const auto* rows = std::get_if<AccumulateRows>(&store.target);
    return rows != nullptr && Accumulators::take_any_order(program, rows->accumulator);
  });
}

std::vector<bool> which_take_turns(const Program& program) {
  std::vector<bool> takes_turns;
  for (const Segment& segment : program.segments) {
    takes_turns.push_back(!segment.may_overlap || !stores_in_any_order(program, segment));
  }
  return takes_turns;
}

}  // namespace

bool Walks::are_possible(const Program& program) {
  if (program.micro_batches_per_window == 1 || !have_own_links(program)) return false;
  Users users;
  size_t num_segments = 0;
  for (size_t id = 0; id < program.segments.size(); ++id) {
    const Segment& segment = program.segments[id];
    if (segment.kind != SegmentKind::kMicroBatch) continue;
    if (segment.is_collective || segment.is_seen_outside) return false;
    users.note(segment, static_cast<int64_t>(id));
    ++num_segments;
  }
  // Links that make a circle have no order; by the lists, the call says where it stands.
  return num_segments > 0 && in_order(program).size() == num_segments &&
         users.write_only_their_own();
}

Walks::Walks(const Program& program, int64_t num_replicas, int64_t num_workers)
    : program_(program),
      num_replicas_(num_replicas),
      path_(in_order(program)),
      takes_turns_(which_take_turns(program)),
      num_done_(num_replicas * program.segments.size()) {
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->task.lane = worker;
    workers_.back()->task.worker = worker;
    workers_.back()->items.resize(program.links.size());
  }
}

void Walks::begin_window() {
  num_begun_ = 0;
  for (Count& count : num_done_) count.value = 0;
}

// Replicas take turns, so that none is far behind.
void Walks::begin_walk(int64_t worker) {
  workers_[worker]->walk = Walk{num_begun_ % num_replicas_, num_begun_ / num_replicas_};
  workers_[worker]->begun_ns = now_ns();
  ++num_begun_;
}

void Walks::clear() {
  for (const auto& worker : workers_) {
    worker->walk.reset();
    worker->task.clear();
    for (Item& item : worker->items) item = {};
  }
}

bool Walks::is_ready(int64_t worker) const {
  const Walk& walk = *workers_[worker]->walk;
  const SegmentId next = path_[walk.step];
  return program_.at(next).may_overlap || has_turn(walk.replica, {next, walk.micro_batch});
}

Task& Walks::begin(int64_t worker) {
  Worker& own = *workers_[worker];
  const SegmentId next = path_[own.walk->step];
  own.task.replica = own.walk->replica;
  own.task.action = {next, own.walk->micro_batch};
  own.task.ipu = program_.at(next).ipu;
  for (LinkId id : program_.at(next).incoming) {
    own.task.taken.emplace_back().push_back(std::move(own.items[id.value]));
  }
  return own.task;
}

void Walks::finish(Task& task) {
  Worker& own = *workers_[task.worker];
  const std::vector<LinkId>& outgoing = program_.at(task.action.segment).outgoing;
  for (size_t i = 0; i < outgoing.size(); ++i) {
    own.items[outgoing[i].value] = std::move(task.given[i]);
  }
  task.given.clear();
  if (++own.walk->step == path_.size()) own.walk.reset();
  const int64_t place =
      task.replica * static_cast<int64_t>(program_.segments.size()) + task.action.segment.value;
  ++num_done_[place].value;
}

bool Walks::has_turn(int64_t replica, const Action& action) const {
  return !takes_turns_[action.segment.value] ||
         num_done(replica, action.segment).value == action.micro_batch;
}

}  // namespace poptorch_emu
