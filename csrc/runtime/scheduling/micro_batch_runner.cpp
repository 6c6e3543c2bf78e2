#include "runtime/scheduling/micro_batch_runner.h"

#include <utility>

#include "common/clock.h"

namespace poptorch_emu {

MicroBatchRunner::MicroBatchRunner(const Program& program, int64_t num_replicas,
                                   int64_t num_workers)
    : program_(program),
      num_replicas_(num_replicas),
      num_done_(num_replicas * program.segments.size()) {
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->task.worker = worker;
    workers_.back()->items.resize(program.links.size());
  }
}

void MicroBatchRunner::begin_window() {
  num_begun_ = 0;
  for (Count& count : num_done_) count.value = 0;
}

// Replicas alternate, so that none falls far behind.
void MicroBatchRunner::begin_micro_batch(int64_t worker) {
  workers_[worker]->flight = Flight{num_begun_ % num_replicas_, next_micro_batch()};
  workers_[worker]->begun_ns = now_ns();
  ++num_begun_;
}

void MicroBatchRunner::clear() {
  for (const auto& worker : workers_) {
    worker->flight.reset();
    worker->task.clear();
    for (Item& item : worker->items) item = {};
  }
}

bool MicroBatchRunner::is_ready(int64_t worker) const {
  const Flight& flight = *workers_[worker]->flight;
  const SegmentId next = program_.path[flight.step];
  return may_overlap(next) || has_turn(flight.replica, {next, flight.micro_batch});
}

Task& MicroBatchRunner::begin_action(int64_t worker) {
  Worker& own = *workers_[worker];
  const SegmentId next = program_.path[own.flight->step];
  own.task.replica = own.flight->replica;
  own.task.action = {next, own.flight->micro_batch};
  own.task.ipu = program_.at(next).ipu;
  own.task.lane = may_overlap(next) ? worker : 0;
  for (LinkId id : program_.at(next).incoming) {
    own.task.taken.emplace_back().push_back(std::move(own.items[id.value]));
  }
  return own.task;
}

void MicroBatchRunner::finish_action(Task& task) {
  Worker& own = *workers_[task.worker];
  const std::vector<LinkId>& outgoing = program_.at(task.action.segment).outgoing;
  for (size_t i = 0; i < outgoing.size(); ++i) {
    own.items[outgoing[i].value] = std::move(task.given[i]);
  }
  task.given.clear();
  if (++own.flight->step == program_.path.size()) own.flight.reset();
  ++num_done_[place_of(task.replica, task.action.segment)].value;
}

bool MicroBatchRunner::has_turn(int64_t replica, const Action& action) const {
  return program_.at(action.segment).turns == Turns::kAnyOrder ||
         num_done_[place_of(replica, action.segment)].value == action.micro_batch;
}

}  // namespace poptorch_emu
