// Checks the form of a program, so that a run cannot fail because of it.

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/errors.h"
#include "program/program.h"
#include "program/register_checker.h"

namespace poptorch_emu {
namespace {

template <typename Table, typename Tag>
void check_id(const Table& table, Id<Tag> id, const std::string& where, const char* what) {
  if (id.value < 0 || id.value >= static_cast<int64_t>(table.size())) {
    throw Error(where + " names " + what + " " + std::to_string(id.value) + ", but there are " +
                std::to_string(table.size()));
  }
}

// Checks the registers of one segment, and that all ids in it exist.
class SegmentChecker {
 public:
  SegmentChecker(const Program& program, const Segment& segment)
      : program_(program),
        segment_(segment),
        registers_(segment.num_registers, "segment '" + segment.name + "'") {}

  void run() {
    if (segment_.kind == SegmentKind::kWindow && segment_.runners.empty()) {
      throw Error("Segment '" + segment_.name + "' is to be run by no replica");
    }
    if (segment_.has_host_calls() && !segment_.is_seen_outside) {
      throw Error("Segment '" + segment_.name +
                  "' calls a function of the host, but is not marked as seen outside");
    }
    for (AccumulatorId id : segment_.reductions) check_reduction(id);
    for (const Load& load : segment_.loads) {
      check_source(load.source);
      registers_.write(load.target, "a load");
    }
    for (LinkId id : segment_.incoming) {
      for (RegisterId target : program_.links[id.value].consumer_registers) {
        registers_.write(target, "a link");
      }
    }
    for (const Instruction& instruction : segment_.instructions) {
      registers_.check(instruction);
      if (instruction.control == Control::kAddProduct) check_product(instruction);
      if (instruction.control == Control::kUpdateRows) {
        check_touched(sum_of(instruction), "'" + instruction.debug.node + "'");
      }
    }
    for (const Store& store : segment_.stores) {
      check_target(store.target);
      registers_.read(store.source, "a store");
      if (const auto* rows = std::get_if<AccumulateRows>(&store.target)) {
        registers_.read(rows->indices, "a store");
      }
    }
    for (LinkId id : segment_.outgoing) {
      for (RegisterId source : program_.links[id.value].producer_registers) {
        registers_.read(source, "a link");
      }
    }
  }

 private:
  void check_reduction(AccumulatorId id) const {
    const std::string where = "A reduction of segment '" + segment_.name + "'";
    check_id(program_.accumulators, id, where, "accumulator");
    const Accumulator& accumulator = program_.accumulators[id.value];
    if (segment_.kind != SegmentKind::kWindow) {
      throw Error(where + " adds up '" + accumulator.name +
                  "' over replicas, which only a window segment may do");
    }
    if (accumulator.is_sharded) {
      throw Error(where + " adds up '" + accumulator.name +
                  "' again, of which each replica holds a part of the sum already");
    }
  }

  void check_source(const LoadSource& source) {
    const std::string where = "A load of segment '" + segment_.name + "'";
    if (const auto* load = std::get_if<LoadInput>(&source)) {
      check_id(program_.inputs, load->input, where, "input");
    } else if (const auto* load = std::get_if<LoadVariable>(&source)) {
      check_id(program_.variables, load->variable, where, "variable");
    } else if (const auto* load = std::get_if<LoadConstant>(&source)) {
      check_id(program_.constants, load->constant, where, "constant");
    } else if (const auto* load = std::get_if<LoadScalar>(&source)) {
      check_id(program_.scalars, load->scalar, where, "scalar");
    } else if (const auto* load = std::get_if<LoadAccumulator>(&source)) {
      check_id(program_.accumulators, load->accumulator, where, "accumulator");
      if (segment_.kind != SegmentKind::kWindow) {
        throw Error(where + " reads an accumulator, which only a window segment may do");
      }
    } else if (const auto* load = std::get_if<LoadVariableRows>(&source)) {
      check_touched(load->variable, load->accumulator, where);
    } else if (const auto* load = std::get_if<LoadAccumulatorRows>(&source)) {
      check_touched(load->accumulator, where);
    } else if (const auto* load = std::get_if<LoadPrepared>(&source)) {
      check_id(program_.segments, load->preparation, where, "segment");
    } else if (const auto* load = std::get_if<LoadRng>(&source)) {
      check_piece(*load, where);
    }
  }

  // Checks a read of touched rows, because only a whole sum on an IPU records the rows to which
  // gradients were added.
  void check_touched(AccumulatorId id, const std::string& where) const {
    check_id(program_.accumulators, id, where, "accumulator");
    const Accumulator& sum = program_.accumulators[id.value];
    if (segment_.kind != SegmentKind::kWindow || sum.is_remote || !takes_rows(id)) {
      throw Error(where + " asks for the rows of '" + sum.name +
                  "' that were added to, which a window segment may do where a store adds rows to "
                  "a sum that is not in streaming memory");
    }
  }

  void check_touched(VariableId variable, AccumulatorId id, const std::string& where) const {
    check_id(program_.variables, variable, where, "variable");
    check_touched(id, where);
    const Variable& weight = program_.variables[variable.value];
    if (weight.shape.size() != 2 || weight.is_remote || weight.is_sharded) {
      throw Error(where + " takes rows of '" + weight.name +
                  "', which must be a whole matrix and not in streaming memory");
    }
  }

  bool takes_rows(AccumulatorId id) const {
    const auto is_it = [id](const AccumulateRows& rows) { return rows.accumulator == id; };
    return std::any_of(
        program_.segments.begin(), program_.segments.end(),
        [&](const Segment& segment) { return has_store<AccumulateRows>(segment, is_it); });
  }

  void check_piece(const LoadRng& load, const std::string& where) const {
    const int64_t count = segment_.kind == SegmentKind::kMicroBatch ? program_.joined : 1;
    if (load.piece < 0 || load.piece >= count) {
      throw Error(where + " is of piece " + std::to_string(load.piece) + " of " +
                  std::to_string(count));
    }
  }

  void check_target(const StoreTarget& target) const {
    const std::string where = "A store of segment '" + segment_.name + "'";
    if (const auto* store = std::get_if<StoreOutput>(&target)) {
      check_id(program_.outputs, store->output, where, "output");
      check_pieces(*store, where);
    } else if (const auto* store = std::get_if<StoreVariable>(&target)) {
      check_id(program_.variables, store->variable, where, "variable");
      check_assignment(program_.variables[store->variable.value], store->is_shard, where);
    } else if (const auto* store = std::get_if<Accumulate>(&target)) {
      check_addition(store->accumulator, where);
    } else if (const auto* store = std::get_if<AccumulateRows>(&target)) {
      check_rows(*store, where);
    } else if (const auto* store = std::get_if<StoreVariableRows>(&target)) {
      check_touched(store->variable, store->accumulator, where);
    }
  }

  void check_pieces(const StoreOutput& store, const std::string& where) const {
    const int64_t count = segment_.kind == SegmentKind::kMicroBatch ? program_.joined : 1;
    if (store.piece < 0 || store.num_pieces < 1 || store.num_pieces > count - store.piece) {
      throw Error(where + " has " + std::to_string(store.num_pieces) + " pieces from " +
                  std::to_string(store.piece) + " on, of " + std::to_string(count));
    }
  }

  void check_addition(AccumulatorId id, const std::string& where) const {
    check_id(program_.accumulators, id, where, "accumulator");
    if (has_one_runner() && !is_exchanged(id)) {
      throw Error(where + " adds to an accumulator, which in a window every replica must do");
    }
  }

  // Returns whether a sum is exchanged with other processes, each of which may have one replica.
  bool is_exchanged(AccumulatorId id) const {
    return std::any_of(program_.segments.begin(), program_.segments.end(),
                       [id](const Segment& segment) {
                         return std::count(segment.exchanges.begin(), segment.exchanges.end(), id);
                       });
  }

  // Checks an instruction that adds its product to a sum immediately, instead of in a later store.
  void check_product(const Instruction& instruction) const {
    const std::string where = "'" + instruction.debug.node + "' of segment '" + segment_.name + "'";
    check_id(program_.accumulators, sum_of(instruction), where, "accumulator");
    const Accumulator& sum = program_.accumulators[sum_of(instruction).value];
    if (segment_.kind != SegmentKind::kMicroBatch || sum.dtype != at::kFloat ||
        sum.is_running_mean || sum.is_sharded) {
      throw Error(where + " adds a product to '" + sum.name +
                  "', which is possible for a whole float32 sum of a micro-batch segment only");
    }
  }

  // Checks a sum to which rows are added; some sums accept dense gradients only.
  void check_rows(const AccumulateRows& rows, const std::string& where) const {
    check_addition(rows.accumulator, where);
    const Accumulator& sum = program_.accumulators[rows.accumulator.value];
    if (sum.dtype != at::kFloat || sum.is_running_mean || sum.is_sharded) {
      throw Error(where + " adds rows to '" + sum.name +
                  "', which is possible for a whole float32 sum only");
    }
    if (rows.num_rows < 1 || rows.num_rows > std::numeric_limits<int32_t>::max()) {
      throw Error(where + " adds rows to '" + sum.name + "', which is said to have " +
                  std::to_string(rows.num_rows));
    }
  }

  void check_assignment(const Variable& variable, bool is_shard, const std::string& where) const {
    if (variable.is_per_replica && has_one_runner()) {
      throw Error(where + " assigns a variable that each replica has its own of");
    }
    if (variable.is_sharded && !is_shard) {
      throw Error(where + " assigns the whole of '" + variable.name +
                  "', of which each replica holds a part");
    }
  }

  bool has_one_runner() const {
    return segment_.kind == SegmentKind::kWindow && segment_.runners.size() == 1;
  }

  const Program& program_;
  const Segment& segment_;
  RegisterChecker registers_;
};

void check_links(const Program& program) {
  std::set<std::tuple<SegmentId, SegmentId, bool, bool>> seen;
  for (const Link& link : program.links) {
    const std::string where = "A link";
    check_id(program.segments, link.producer, where, "segment");
    check_id(program.segments, link.consumer, where, "segment");
    if (link.producer_registers.size() != link.consumer_registers.size() || link.capacity < 1) {
      throw Error("The link from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name +
                  "' needs as many registers at both ends and room for at least one item");
    }
    const Segment& producer = program.at(link.producer);
    if (producer.kind == SegmentKind::kWindow && producer.runners.size() > 1 &&
        producer.runners != program.at(link.consumer).runners) {
      throw Error("The link from '" + producer.name + "' to '" + program.at(link.consumer).name +
                  "' needs the same runners at both ends, or one that sends");
    }
    if (link.is_sharded && (producer.kind == SegmentKind::kWindow ||
                            program.at(link.consumer).kind == SegmentKind::kWindow)) {
      throw Error("The link from '" + producer.name + "' to '" + program.at(link.consumer).name +
                  "' carries parts of values, which is possible between micro-batches only");
    }
    if (!seen.insert({link.producer, link.consumer, link.is_remote, link.is_sharded}).second) {
      throw Error("There are two links from '" + program.at(link.producer).name + "' to '" +
                  program.at(link.consumer).name + "'");
    }
  }
}

std::optional<AccumulatorId> accumulator_of(const StoreTarget& target) {
  if (const auto* dense = std::get_if<Accumulate>(&target)) return dense->accumulator;
  if (const auto* rows = std::get_if<AccumulateRows>(&target)) return rows->accumulator;
  return std::nullopt;
}

// Checks that one segment stores all pieces of an output, in order, and that only one store or
// product adds to a sum.
void check_stores(const Program& program) {
  std::vector<int64_t> num_pieces(program.outputs.size(), 0);
  std::vector<const Segment*> storing(program.outputs.size(), nullptr);
  std::vector<int64_t> num_additions(program.accumulators.size(), 0);
  const auto note_addition = [&](AccumulatorId id, const Segment& segment) {
    if (++num_additions[id.value] > 1) {
      throw Error("Accumulator '" + program.accumulators[id.value].name +
                  "' is added to twice, the second time in segment '" + segment.name + "'");
    }
  };
  for (const Segment& segment : program.segments) {
    for (const Store& store : segment.stores) {
      if (const auto* target = std::get_if<StoreOutput>(&store.target)) {
        const int64_t id = target->output.value;
        if ((storing[id] != nullptr && storing[id] != &segment) ||
            target->piece != num_pieces[id]) {
          throw Error("Output " + std::to_string(id) +
                      " is stored twice, the second time in segment '" + segment.name + "'");
        }
        storing[id] = &segment;
        num_pieces[id] += target->num_pieces;
        continue;
      }
      const std::optional<AccumulatorId> id = accumulator_of(store.target);
      if (id) note_addition(*id, segment);
    }
    for (const Instruction& instruction : segment.instructions) {
      if (instruction.control == Control::kAddProduct) note_addition(sum_of(instruction), segment);
    }
  }
  for (size_t id = 0; id < storing.size(); ++id) {
    if (storing[id] == nullptr || storing[id]->kind != SegmentKind::kMicroBatch) continue;
    if (num_pieces[id] < program.joined) {
      throw Error("Output " + std::to_string(id) + " is stored for " +
                  std::to_string(num_pieces[id]) + " of the " + std::to_string(program.joined) +
                  " micro-batches of an action");
    }
  }
}

}  // namespace

void Program::validate() const {
  if (micro_batches_per_window < 1) {
    throw Error("A window has at least 1 micro-batch, not " +
                std::to_string(micro_batches_per_window));
  }
  if (joined < 1 || micro_batches_per_window % joined != 0) {
    throw Error("An action cannot join " + std::to_string(joined) +
                " micro-batches of a window of " + std::to_string(micro_batches_per_window));
  }
  for (const Output& output : outputs) {
    if (output.period < 1) {
      throw Error("An output's period is at least 1, not " + std::to_string(output.period));
    }
  }
  check_links(*this);
  for (const Segment& segment : segments) SegmentChecker(*this, segment).run();
  check_stores(*this);
  check_preparations();
  check_schedule();
  check_path();
  check_collectives();
  check_network();
}

}  // namespace poptorch_emu
