#include "runtime/scheduling/micro_batch_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <variant>

namespace poptorch_emu {
namespace {

// Returns whether links of micro-batch segments only connect these and carry whole values.
bool links_stay_inside(const Program& program) {
  const auto is_inside = [&](SegmentId id) {
    return program.at(id).kind == SegmentKind::kMicroBatch;
  };
  return std::all_of(program.links.begin(), program.links.end(), [&](const Link& link) {
    const bool begins_inside = is_inside(link.producer);
    return begins_inside == is_inside(link.consumer) && !(begins_inside && link.is_sharded);
  });
}

// The micro-batch segments that read or write each variable.
struct VariableUses {
  std::map<VariableId, std::set<int64_t>> users;
  std::set<VariableId> written;

  void add(const Segment& segment, int64_t id) {
    for (const Load& load : segment.loads) {
      if (const auto* source = std::get_if<LoadVariable>(&load.source)) {
        users[source->variable].insert(id);
      }
    }
    for (const Store& store : segment.stores) {
      if (const auto* target = std::get_if<StoreVariable>(&store.target)) {
        users[target->variable].insert(id);
        written.insert(target->variable);
      }
    }
  }

  bool are_written_ones_private() const {
    return std::all_of(written.begin(), written.end(),
                       [this](VariableId id) { return users.at(id).size() == 1; });
  }
};

// Returns the micro-batch segments, each after the producers of its links. Segments in a cycle of
// links are left out.
std::vector<SegmentId> in_order_of_links(const Program& program) {
  std::vector<int64_t> num_missing(program.segments.size(), 0);
  for (const Link& link : program.links) ++num_missing[link.consumer.value];
  std::set<SegmentId> ready;
  for (size_t index = 0; index < program.segments.size(); ++index) {
    const SegmentId id{static_cast<int64_t>(index)};
    const bool is_inside = program.at(id).kind == SegmentKind::kMicroBatch;
    if (is_inside && num_missing[index] == 0) ready.insert(id);
  }
  std::vector<SegmentId> order;
  while (!ready.empty()) {
    order.push_back(ready.extract(ready.begin()).value());
    for (LinkId link : program.at(order.back()).outgoing) {
      const SegmentId consumer = program.links[link.value].consumer;
      if (--num_missing[consumer.value] == 0) ready.insert(consumer);
    }
  }
  return order;
}

// Returns whether stores may run in any order: output pieces have fixed positions, and some sums
// restore the order themselves.
bool stores_in_any_order(const Program& program, const Segment& segment) {
  return std::all_of(segment.stores.begin(), segment.stores.end(), [&](const Store& store) {
    if (const auto* output = std::get_if<StoreOutput>(&store.target)) {
      return program.outputs[output->output.value].mode != OutputMode::kSum;
    }
    if (const auto* sum = std::get_if<Accumulate>(&store.target)) {
      return program.adds_in_any_order(sum->accumulator);
    }
    const auto* rows = std::get_if<AccumulateRows>(&store.target);
    return rows != nullptr && program.adds_in_any_order(rows->accumulator);
  });
}

Turns turns_of(const Program& program, const Segment& segment) {
  const auto is_any = [](const StoreVariable&) { return true; };
  if (has_store<StoreVariable>(segment, is_any)) return Turns::kOneByOne;
  return stores_in_any_order(program, segment) ? Turns::kAnyOrder : Turns::kInTurn;
}

}  // namespace

MicroBatchOrder micro_batch_order(const Program& program) {
  if (program.runs_per_window() == 1 || !links_stay_inside(program)) return {};
  MicroBatchOrder order{in_order_of_links(program)};
  VariableUses uses;
  size_t num_segments = 0;
  for (size_t id = 0; id < program.segments.size(); ++id) {
    const Segment& segment = program.segments[id];
    order.turns.push_back(turns_of(program, segment));
    if (segment.kind != SegmentKind::kMicroBatch) continue;
    const bool waits_for_replicas =
        program.is_collective(segment) || !segment.collectives().empty() || segment.relays();
    if (waits_for_replicas || segment.is_seen_outside) return {};
    uses.add(segment, static_cast<int64_t>(id));
    ++num_segments;
  }
  // If links form a cycle, only the lists define the order, so that there is no path.
  const bool is_allowed = order.path.size() == num_segments && uses.are_written_ones_private();
  return is_allowed ? order : MicroBatchOrder{};
}

}  // namespace poptorch_emu
