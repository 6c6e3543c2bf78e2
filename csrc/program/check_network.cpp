// Checks the exchanges of a program with other processes.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

// Position of each window segment in its IPU's list.
using Places = std::map<SegmentId, size_t>;

class NetworkChecker {
 public:
  explicit NetworkChecker(const Program& program) : program_(program) {
    for (const std::vector<Action>& row : program.schedule) {
      for (size_t place = 0; place < row.size(); ++place) places_[row[place].segment] = place;
    }
  }

  void run() {
    for (const Segment& segment : program_.segments) {
      if (segment.has_exchanges()) check_place(segment);
      if (segment.relays()) check_row(segment);
    }
    if (row_ < 0) return;
    for (size_t index = 0; index < program_.segments.size(); ++index) {
      const SegmentId id{static_cast<int64_t>(index)};
      const Segment& segment = program_.at(id);
      if (segment.has_exchanges()) {
        check_exchanges(id);
      } else {
        check_company(segment);
      }
    }
    for (const Segment& segment : program_.segments) {
      for (const Load& load : segment.loads) check_load(segment, load);
      for (AccumulatorId id : segment.reductions) check_reduction(segment, id);
    }
  }

  bool has_network() const { return row_ >= 0; }

 private:
  const std::string& name(AccumulatorId id) const { return program_.accumulators[id.value].name; }

  // Checks that a segment with exchanges is in the network's list. With one list, all processes
  // reach the exchanges in the same order, so that none waits for a peer at another exchange.
  void check_place(const Segment& segment) {
    const bool does_more = !segment.loads.empty() || !segment.instructions.empty() ||
                           !segment.stores.empty() || !segment.reductions.empty();
    if (segment.kind != SegmentKind::kWindow || segment.runners.size() != 1 || does_more) {
      throw Error("Segment '" + segment.name +
                  "' exchanges tensors with other processes, which only a window segment of one "
                  "runner may do that does nothing else");
    }
    check_row(segment);
  }

  void check_row(const Segment& segment) {
    if (row_ >= 0 && segment.ipu != row_) {
      throw Error("Segment '" + segment.name + "' exchanges tensors on row " +
                  std::to_string(segment.ipu) + ", but others do on row " + std::to_string(row_) +
                  "; all exchanges are one list");
    }
    row_ = segment.ipu;
  }

  // Checks that other segments in the network's row relay a collective, or add gradients of a
  // micro-batch to sharded sums.
  void check_company(const Segment& segment) const {
    for (const Store& store : segment.stores) {
      const auto* sum = std::get_if<Accumulate>(&store.target);
      const bool is_sharded =
          sum != nullptr && program_.accumulators[sum->accumulator.value].is_sharded;
      if (is_sharded && segment.ipu != row_) {
        throw Error("Segment '" + segment.name + "' adds to '" + name(sum->accumulator) +
                    "', of which other processes have parts, and is not on the network's row " +
                    std::to_string(row_));
      }
      if (segment.ipu == row_ && !is_sharded) fail_company(segment);
    }
    if (segment.ipu != row_ || segment.relays()) return;
    if (segment.kind != SegmentKind::kMicroBatch || segment.stores.empty() ||
        !segment.instructions.empty() || !segment.loads.empty()) {
      fail_company(segment);
    }
  }

  [[noreturn]] void fail_company(const Segment& segment) const {
    throw Error("Segment '" + segment.name + "' is on the network's row " + std::to_string(row_) +
                " of the schedule and exchanges nothing");
  }

  void check_exchanges(SegmentId id) {
    const Segment& segment = program_.at(id);
    for (const auto* ids : {&segment.exchanges, &segment.scatters}) {
      for (AccumulatorId sum : *ids) check_sum(segment, sum);
    }
    for (AccumulatorId sum : segment.exchanges) {
      whole_by_[sum] = id;
      check_summands(id, sum);
    }
    for (AccumulatorId sum : segment.scatters) parts_by_[sum] = id;
    for (AccumulatorId sum : segment.gathered_sums) {
      check_id(static_cast<int64_t>(program_.accumulators.size()), sum.value, segment);
      if (!program_.accumulators[sum.value].is_sharded || !whole_by_.emplace(sum, id).second) {
        throw Error("Segment '" + segment.name + "' gathers '" + name(sum) +
                    "', which is possible for a sharded sum and once only");
      }
    }
    for (VariableId variable : segment.gathers) check_gather(id, variable);
  }

  void check_id(int64_t count, int64_t id, const Segment& segment) const {
    if (id >= 0 && id < count) return;
    throw Error("Segment '" + segment.name + "' exchanges number " + std::to_string(id) +
                ", but there are " + std::to_string(count));
  }

  void check_sum(const Segment& segment, AccumulatorId id) {
    check_id(static_cast<int64_t>(program_.accumulators.size()), id.value, segment);
    const Accumulator& accumulator = program_.accumulators[id.value];
    const std::vector<int64_t>& groups = accumulator.groups.of_replica;
    const auto differs = [&groups](int64_t group) { return group != groups.front(); };
    if (accumulator.is_sharded || std::any_of(groups.begin(), groups.end(), differs)) {
      throw Error("Segment '" + segment.name + "' adds up '" + accumulator.name +
                  "' over processes, which is possible for a whole sum of all replicas only");
    }
    if (!exchanged_.insert(id).second) {
      throw Error("Accumulator '" + accumulator.name +
                  "' is added up over processes twice, the second time in segment '" +
                  segment.name + "'");
    }
  }

  // Checks that an exchange waits for all additions to a sum. Additions of replicas in a window are
  // complete after one replica of their IPU has done a later action. Additions of micro-batches are
  // complete before any window segment.
  void check_summands(SegmentId id, AccumulatorId sum) {
    for (size_t index = 0; index < program_.segments.size(); ++index) {
      const SegmentId writer{static_cast<int64_t>(index)};
      const Segment& segment = program_.at(writer);
      if (segment.kind != SegmentKind::kWindow || !adds_to(segment, sum)) continue;
      if (waits_for_all(program_.at(id), writer)) continue;
      throw Error("Segment '" + program_.at(id).name + "' exchanges '" + name(sum) +
                  "' and does not wait until all replicas are through with '" + segment.name + "'");
    }
  }

  // Checks that a gather waits until all replicas have assigned their parts of a variable.
  void check_gather(SegmentId id, VariableId variable) {
    const Segment& gather = program_.at(id);
    check_id(static_cast<int64_t>(program_.variables.size()), variable.value, gather);
    const std::string& name = program_.variables[variable.value].name;
    if (!gathered_.insert(variable).second) {
      throw Error("Variable '" + name + "' is gathered from all processes twice, the second time " +
                  "in segment '" + gather.name + "'");
    }
    for (size_t index = 0; index < program_.segments.size(); ++index) {
      const SegmentId writer{static_cast<int64_t>(index)};
      if (!assigns_part(program_.at(writer), variable)) continue;
      if (!waits_for_all(gather, writer)) {
        throw Error("Segment '" + gather.name + "' gathers '" + name +
                    "' from all processes and does not wait until all replicas are through with '" +
                    program_.at(writer).name + "'");
      }
    }
  }

  bool waits_for_all(const Segment& exchange, SegmentId writer) {
    const auto comes_after = [&](LinkId link) {
      const SegmentId between = program_.links[link.value].producer;
      const Segment& segment = program_.at(between);
      return segment.kind == SegmentKind::kWindow && segment.runners.size() == 1 &&
             segment.ipu == program_.at(writer).ipu && places_[between] > places_[writer];
    };
    return std::any_of(exchange.incoming.begin(), exchange.incoming.end(), comes_after);
  }

  static bool adds_to(const Segment& segment, AccumulatorId id) {
    return has_store<Accumulate>(
        segment, [id](const Accumulate& target) { return target.accumulator == id; });
  }

  static bool assigns_part(const Segment& segment, VariableId variable) {
    return has_store<StoreVariable>(segment, [variable](const StoreVariable& target) {
      return target.is_shard && target.variable == variable;
    });
  }

  // Checks that a segment that reads a sum over processes has a link from the exchange, or follows
  // a segment with such a link on its IPU.
  void check_load(const Segment& segment, const Load& load) const {
    const auto* source = std::get_if<LoadAccumulator>(&load.source);
    if (source == nullptr) return;
    const AccumulatorId id = source->accumulator;
    if (const auto whole = whole_by_.find(id); whole != whole_by_.end()) {
      const bool has_own_part = program_.accumulators[id.value].is_sharded && source->is_shard;
      if (!has_own_part) check_wait(segment, id, whole->second);
    } else if (const auto parts = parts_by_.find(id); parts != parts_by_.end()) {
      if (!source->is_shard) fail_whole(segment, id);
      check_wait(segment, id, parts->second);
    } else if (!source->is_shard && program_.accumulators[id.value].is_sharded) {
      fail_whole(segment, id);
    }
  }

  [[noreturn]] void fail_whole(const Segment& segment, AccumulatorId id) const {
    throw Error("Segment '" + segment.name + "' reads the whole of accumulator '" + name(id) +
                "', of which each process has parts only");
  }

  void check_wait(const Segment& reader, AccumulatorId id, SegmentId exchange) const {
    for (const Action& action : program_.schedule.at(reader.ipu)) {
      const Segment& segment = program_.at(action.segment);
      for (LinkId link : segment.incoming) {
        if (program_.links[link.value].producer == exchange) return;
      }
      if (&segment == &reader) break;
    }
    throw Error("Segment '" + reader.name + "' reads accumulator '" + name(id) +
                "' and does not wait until '" + program_.at(exchange).name +
                "' has added it up over the processes");
  }

  void check_reduction(const Segment& segment, AccumulatorId id) const {
    if (!exchanged_.contains(id)) return;
    throw Error("Segment '" + segment.name + "' adds up '" + name(id) +
                "' over the replicas of this process, and another over those of all");
  }

  const Program& program_;
  Places places_;
  int64_t row_ = -1;
  std::set<AccumulatorId> exchanged_;
  std::set<VariableId> gathered_;
  std::map<AccumulatorId, SegmentId> whole_by_;
  std::map<AccumulatorId, SegmentId> parts_by_;
};

// Simulates the window of one replica to find deadlocks. If one order of actions is possible, all
// are. The exchanges form one list, so that processes that follow it never wait for each other in a
// circle. The same holds for replicas at collectives, because all replicas run the same lists.
class Rehearsal {
 public:
  explicit Rehearsal(const Program& program)
      : program_(program),
        rows_(program.schedule.size()),
        num_relays_(program.segments.size(), 0),
        items_(program.links.size()) {
    for (const Segment& segment : program.segments) {
      if (segment.relays()) ++num_relays_[segment.relayed.segment.value];
    }
    for (const auto& row : program.schedule) {
      micro_batch_actions_left_ += std::count_if(row.begin(), row.end(), [&](const Action& action) {
        return program.at(action.segment).kind == SegmentKind::kMicroBatch;
      });
    }
  }

  void run() {
    bool has_moved = true;
    while (std::exchange(has_moved, false)) {
      for (size_t row = 0; row < rows_.size(); ++row) {
        for (; is_ready(row); has_moved = true) begin(row);
      }
    }
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (is_at_end(row)) continue;
      const bool is_locked = rows_[row].has_begun || next(row).relays();
      throw Error("Segment '" + next(row).name + "' waits for " +
                  (is_locked ? "an exchange that its turn does not come to"
                             : "a link that nobody fills before") +
                  ", which locks the processes");
    }
  }

 private:
  struct Row {
    size_t position = 0;
    bool has_begun = false;   // whether the current action waits for the network
    int64_t num_relayed = 0;  // collectives of the current action that are done
  };

  bool is_at_end(size_t row) const { return rows_[row].position == program_.schedule[row].size(); }
  SegmentId next_id(size_t row) const {
    return program_.schedule[row][rows_[row].position].segment;
  }
  const Segment& next(size_t row) const { return program_.at(next_id(row)); }

  bool is_ready(size_t row) const {
    if (is_at_end(row) || rows_[row].has_begun) return false;
    const Segment& segment = next(row);
    if (segment.kind == SegmentKind::kWindow && micro_batch_actions_left_ > 0) return false;
    if (segment.relays()) return is_awaited(segment.relayed);
    const auto has_item = [&](LinkId id) { return items_[id.value] > 0; };
    const auto has_room = [&](LinkId id) {
      return items_[id.value] < program_.links[id.value].capacity;
    };
    return std::all_of(segment.incoming.begin(), segment.incoming.end(), has_item) &&
           std::all_of(segment.outgoing.begin(), segment.outgoing.end(), has_room);
  }

  bool is_awaited(CollectiveId id) const {
    const size_t row = program_.at(id.segment).ipu;
    return rows_[row].has_begun && next_id(row) == id.segment && rows_[row].num_relayed == id.index;
  }

  // Begins an action; one with collectives ends after the network has carried out the last of them.
  void begin(size_t row) {
    const Segment& segment = next(row);
    for (LinkId id : segment.incoming) --items_[id.value];
    if (num_relays_[next_id(row).value] > 0) {
      rows_[row].has_begun = true;
      return;
    }
    if (segment.relays()) note_relayed(segment.relayed.segment);
    end(row);
  }

  void note_relayed(SegmentId id) {
    const size_t row = program_.at(id).ipu;
    if (++rows_[row].num_relayed == num_relays_[id.value]) end(row);
  }

  void end(size_t row) {
    const Segment& segment = next(row);
    for (LinkId id : segment.outgoing) ++items_[id.value];
    if (segment.kind == SegmentKind::kMicroBatch) --micro_batch_actions_left_;
    rows_[row] = {rows_[row].position + 1};
  }

  const Program& program_;
  std::vector<Row> rows_;
  std::vector<int64_t> num_relays_;  // number of collectives that are relayed, by segment
  std::vector<int64_t> items_;       // number of items, by link
  int64_t micro_batch_actions_left_ = 0;
};

}  // namespace

void Program::check_network() const {
  NetworkChecker checker(*this);
  checker.run();
  const bool has_collectives =
      std::any_of(segments.begin(), segments.end(),
                  [](const Segment& segment) { return !segment.collectives().empty(); });
  if (checker.has_network() || has_collectives) Rehearsal(*this).run();
}

}  // namespace poptorch_emu
