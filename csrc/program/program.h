#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"

namespace poptorch_emu {

// A program is values only: what the virtual IPUs run, with every decision taken. It is built once
// by the compiler, checked by `validate`, and never changes while it runs.

// Where an instruction came from, for error messages.
struct Debug {
  std::string node;
  std::string block;
  int64_t stage = 0;
  std::string module;
  std::string source;
};

// An argument that is filled from registers before each call: one tensor, or a list of tensors in
// which an empty register (value -1) stands for None.
struct Slot {
  int64_t argument;
  RegisterId source;
};
struct ListSlot {
  int64_t argument;
  std::vector<RegisterId> sources;
  bool is_optional;  // Tensor?[] rather than Tensor[]
};

// What an instruction does: runs its operator, or one of the things that only a frame can do.
enum class Control {
  kOperator,
  kForLoop,
  kCond,
  kHostCall,
  kAddProduct,
  kUpdateRows,
  kCollective,  // takes part in an exchange between all replicas, and waits for them
  kOwnPiece,    // takes the replica's own entry of the first dimension
};

// Returns what an operator stands for; those of `poptorch_emu` that are no `kOperator` have no
// kernels.
Control control_of(const c10::OperatorHandle& op);

// What an instruction of kind `kCollective` gives each replica: the values of all of them, in order
// on a new first dimension; their sum; or, of the first dimension cut into as many pieces as there
// are replicas, the pieces with its own number.
enum class Collective { kAllGather, kAllReduce, kAllToAll };
Collective collective_of(const c10::OperatorHandle& op);

struct Body;

struct Instruction {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // constants in place, anything in the slots
  std::vector<Slot> slots;
  std::vector<ListSlot> list_slots;
  std::vector<RegisterId> outputs;  // -1 where nothing uses the result
  std::vector<RegisterId> dies;     // released after the call
  Debug debug;
  Control control = Control::kOperator;
  std::vector<Body> bodies;  // of a loop one; of a branch two, the first for `true`
};

// The sum to which an instruction of kind `kAddProduct` adds the product of its two matrices, or
// whose rows one of kind `kUpdateRows` reads.
AccumulatorId sum_of(const Instruction& instruction);

// A collective of a program: the `index`-th of a segment.
struct CollectiveId {
  SegmentId segment;
  int64_t index = -1;

  auto operator<=>(const CollectiveId&) const = default;
};

// Code inside an instruction, with registers of its own. Its parameters are the tensors of the
// instruction's lists: of a loop those it carries, one row of each it scans, those it captures.
struct Body {
  std::string name;
  int64_t num_registers = 0;
  std::vector<RegisterId> parameters;  // -1 for those that nothing reads
  RegisterId iteration;                // holds the number of the iteration; -1 if nothing reads it
  std::vector<Instruction> instructions;
  std::vector<RegisterId> results;
};

// What fills a register before the code of a segment runs.
struct LoadInput {
  InputId input;
};
struct LoadVariable {
  VariableId variable;
  bool is_shard = false;  // only the replica's part of it
};
struct LoadConstant {
  ConstantId constant;
};
struct LoadScalar {
  ScalarId scalar;
};
struct LoadAccumulator {
  AccumulatorId accumulator;
  bool is_shard = false;
};
// Of one of the micro-batches that an action joins.
struct LoadRng {
  int64_t piece = 0;
};
// Of a variable, and of its accumulator, the rows that gradients were added to in this window.
struct LoadVariableRows {
  VariableId variable;
  AccumulatorId accumulator;
};
struct LoadAccumulatorRows {
  AccumulatorId accumulator;
};
// A register of a preparation, as its last run left it.
struct LoadPrepared {
  SegmentId preparation;
  RegisterId source;
};
using LoadSource = std::variant<LoadInput, LoadVariable, LoadConstant, LoadScalar, LoadAccumulator,
                                LoadRng, LoadVariableRows, LoadAccumulatorRows, LoadPrepared>;
struct Load {
  RegisterId target;
  LoadSource source;
};

// What becomes of a register after the code of a segment ran.
// The register holds the pieces of some of the micro-batches that an action joins: of `num_pieces`
// from number `piece` on, behind each other in the first dimension where they are several.
struct StoreOutput {
  OutputId output;
  int64_t piece = 0;
  int64_t num_pieces = 1;
};
struct StoreVariable {
  VariableId variable;
  bool is_shard = false;  // the replica's part; all replicas store theirs in one window
};
struct Accumulate {
  AccumulatorId accumulator;
};
// The register holds rows of a gradient; each is added to the row of the sum that `indices` name.
struct AccumulateRows {
  AccumulatorId accumulator;
  RegisterId indices;
  int64_t num_rows;       // of the sum
  int64_t padding_index;  // its rows are left out; -1 where there is none
};
// The register holds what these rows of the variable become.
struct StoreVariableRows {
  VariableId variable;
  AccumulatorId accumulator;
};
using StoreTarget =
    std::variant<StoreOutput, StoreVariable, Accumulate, AccumulateRows, StoreVariableRows>;
struct Store {
  RegisterId source;
  StoreTarget target;
  // Nothing reads the register afterwards; set by `Program::find_last_uses`.
  bool is_last_use = false;
};

enum class SegmentKind {
  kMicroBatch,  // runs once for each micro-batch, by its own action
  kWindow,      // runs once for each window, by the replicas that are its runners
  // Computes what depends on variables, constants and scalars alone. Its registers keep the values
  // for all segments that read them (`LoadPrepared`), as long as its lifetime says.
  kPreparation,
};

// How long the values of a preparation are kept.
enum class Lifetime {
  // Until the host writes a variable or a scalar that it loads. No segment stores those variables.
  kCall,
  // Until its only variable changes, which updates may do. Each result is written again in the
  // memory that it had before.
  kWindow,
};

// Straight-line code of one stage, or of one IPU's weight update.
struct Segment {
  std::string name;
  int64_t ipu;
  SegmentKind kind;
  Lifetime lifetime = Lifetime::kCall;  // of a preparation
  // The replicas that run a window segment: one for all, one for each group, or each. It begins
  // when every replica of the IPU is through with what comes before.
  std::vector<int64_t> runners = {0};
  // What a runner adds up over its group first, its own part of it.
  std::vector<AccumulatorId> reductions = {};
  // What is exchanged with other processes, in this order: sums that all get; sums of which each
  // process gets the parts of its replicas; sharded sums that are put together; variables whose
  // parts were assigned. Such a segment is on the network's row of the schedule, beside those of
  // the IPUs, and does nothing else.
  std::vector<AccumulatorId> exchanges = {};
  std::vector<AccumulatorId> scatters = {};
  std::vector<AccumulatorId> gathered_sums = {};
  std::vector<VariableId> gathers = {};
  // The collective that it carries out with other processes, for each micro-batch. Such a segment
  // is on the network's row, too, and one replica runs it.
  CollectiveId relayed = {};
  // Whether it calls code of the user's or the host, or prints: then the order of its runs shows.
  bool is_seen_outside = false;
  int64_t num_registers = 0;
  std::vector<Load> loads;
  std::vector<Instruction> instructions;
  std::vector<Store> stores;
  std::vector<LinkId> incoming;
  std::vector<LinkId> outgoing;

  bool has_host_calls() const;
  bool has_exchanges() const {
    return !exchanges.empty() || !scatters.empty() || !gathered_sums.empty() || !gathers.empty();
  }
  bool relays() const { return relayed.segment.value >= 0; }
  // The instructions that are collectives, in order.
  std::vector<const Instruction*> collectives() const;
};

// Whether some store of a segment has a target of a kind, such as `StoreVariable`, that `is` this.
template <typename Kind, typename Is>
bool has_store(const Segment& segment, const Is& is) {
  return std::any_of(segment.stores.begin(), segment.stores.end(), [&is](const Store& store) {
    const auto* target = std::get_if<Kind>(&store.target);
    return target != nullptr && is(*target);
  });
}

// A bounded FIFO that carries tensors from one segment to another of the same replica: a stash when
// both are on one IPU, a channel otherwise. Between window segments, what a single runner sends
// reaches every runner of the consumer.
struct Link {
  SegmentId producer;
  std::vector<RegisterId> producer_registers;
  SegmentId consumer;
  std::vector<RegisterId> consumer_registers;
  int64_t capacity;
  // Links of other kinds may stand beside it.
  bool is_remote = false;  // its items wait in streaming memory
  // Its values are the same on all replicas, and each holds a part of them until all have taken
  // them out; between micro-batch segments only.
  bool is_sharded = false;
};

// Which group each replica belongs to; all to one where nothing is said.
struct ReplicaGroups {
  std::vector<int64_t> of_replica = {};

  int64_t of(int64_t replica) const { return of_replica.empty() ? 0 : of_replica.at(replica); }
};

struct Variable {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  bool is_per_replica;
  // Replicas of one group share a copy, unless each has its own.
  ReplicaGroups groups = {};
  // Each replica holds a part, in place of groups; not with several processes.
  bool is_sharded = false;
  bool is_remote = false;  // lives in streaming memory
};
struct Scalar {
  std::string name;
  double value;
};
struct Accumulator {
  std::string name;
  at::ScalarType dtype;
  bool is_running_mean;
  // Sums are over the replicas of one group.
  ReplicaGroups groups = {};
  // Each replica holds a part of the sum over all, in place of groups. With several processes the
  // network's row adds to it.
  bool is_sharded = false;
  bool is_remote = false;
};
struct Input {
  std::string name;
  bool is_batched;
};

// The numbers are those of PopTorch's enumeration.
enum class OutputMode { kFinal = 0, kEveryN = 1, kAll = 2, kSum = 3 };
struct Output {
  OutputMode mode;
  int64_t period;
};

// Of a segment that runs for each micro-batch, an action may join several: `Program::joined`. They
// are counted as one then.
struct Action {
  SegmentId segment;
  int64_t micro_batch;
};

// How numbers are treated beside what the instructions say.
struct Numerics {
  // A NaN or an infinity that numbers did not have before is an error.
  bool checks_floating_point = false;
  // Gradients are rounded at random when they are added to a float16 accumulator.
  bool rounds_stochastically = false;
};

struct Program {
  std::vector<Input> inputs;
  std::vector<at::Tensor> constants;
  std::vector<Variable> variables;
  std::vector<Scalar> scalars;
  std::vector<Accumulator> accumulators;
  std::vector<Output> outputs;
  std::vector<Segment> segments;
  std::vector<Link> links;
  // For each IPU what it does in one window, in order.
  std::vector<std::vector<Action>> schedule;
  int64_t micro_batches_per_window = 1;
  // How many micro-batches that follow each other an action runs for, as if they were one.
  int64_t joined = 1;
  Numerics numerics;

  // How often a segment of micro-batches runs in a window.
  int64_t runs_per_window() const { return micro_batches_per_window / joined; }

  Segment& at(SegmentId id) { return segments.at(id.value); }
  const Segment& at(SegmentId id) const { return segments.at(id.value); }

  // Notes in each store whether it is the last to read its register. Call when all is built.
  void find_last_uses();

  // Whether a segment adds to a sharded accumulator, which all replicas do together: it begins when
  // every replica of its IPU has done what comes before, like a window segment.
  bool is_collective(const Segment& segment) const;

  // Whether micro-batches may add to a sum in any order, and at once: then the sum sees to the
  // order. One that is checked may not, since an error names the micro-batch that spoils it.
  bool adds_in_any_order(AccumulatorId id) const;

  // Throws `Error` that names the first fault; a program that passes cannot fail for its form.
  void validate() const;
  // The parts of it that look at when segments run, at what is exchanged with other processes, at
  // collectives, and at preparations.
  void check_schedule() const;
  void check_network() const;
  void check_collectives() const;
  void check_preparations() const;

  // Throws `Error` if a valid program cannot run on this many replicas, in one process or as one of
  // several.
  void check_replicas(int64_t num_replicas, bool has_peers = false) const;

  // A listing of everything, for people.
  std::string text() const;
};

// "float32[4, 3]" for a tensor, a short form of anything else.
std::string describe(const c10::IValue& value);

}  // namespace poptorch_emu
