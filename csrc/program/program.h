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

// A program consists of values only, with every decision made. The compiler builds it once,
// `validate` checks it, and it never changes while it runs.

// The origin of an instruction, for error messages.
struct Debug {
  std::string node;
  std::string block;
  int64_t stage = 0;
  std::string module;
  std::string source;
};

// An argument that registers fill before each call: one tensor, or a list of tensors in which an
// empty register (value -1) stands for None.
struct Slot {
  int64_t argument;
  RegisterId source;
};
struct ListSlot {
  int64_t argument;
  std::vector<RegisterId> sources;
  bool is_optional;  // Tensor?[] rather than Tensor[]
};

// Kind of an instruction: a call of its operator, or an action that only a frame can carry out.
enum class Control {
  kOperator,
  kForLoop,
  kCond,
  kHostCall,
  kAddProduct,
  kUpdateRows,
  kCollective,  // exchanges a value with all replicas, and waits for them
  kOwnPiece,    // selects the replica's entry of the first dimension
};

// Returns the kind of an operator; those of `poptorch_emu` other than `kOperator` have no kernel.
Control control_of(const c10::OperatorHandle& op);

// Result of an instruction of kind `kCollective` on each replica. `kAllGather` stacks the values of
// all replicas in a new first dimension, and `kAllReduce` returns their sum. `kAllToAll` splits the
// first dimension into one piece for each replica and returns the pieces with the replica's number.
enum class Collective { kAllGather, kAllReduce, kAllToAll };
Collective collective_of(const c10::OperatorHandle& op);

struct Body;

struct Instruction {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // constants; the entries of slots are ignored
  std::vector<Slot> slots;
  std::vector<ListSlot> list_slots;
  std::vector<RegisterId> outputs;  // -1 for a result without users
  std::vector<RegisterId> dies;     // registers released after the call
  Debug debug;
  Control control = Control::kOperator;
  std::vector<Body> bodies;  // one for a loop; two for a branch, the first for `true`
};

// Returns the sum to which an instruction of kind `kAddProduct` adds the product of its matrices,
// or whose rows an instruction of kind `kUpdateRows` reads.
AccumulatorId sum_of(const Instruction& instruction);

// One collective of a program: number `index` within a segment.
struct CollectiveId {
  SegmentId segment;
  int64_t index = -1;

  auto operator<=>(const CollectiveId&) const = default;
};

// Code inside an instruction, with its own registers. Its parameters are the tensors in the lists
// of the instruction. A loop passes carried values, rows of scanned values, and captured values.
struct Body {
  std::string name;
  int64_t num_registers = 0;
  std::vector<RegisterId> parameters;  // -1 for a parameter without readers
  RegisterId iteration;                // number of the iteration; -1 if nothing reads it
  std::vector<Instruction> instructions;
  std::vector<RegisterId> results;
};

// A load fills a register before the code of a segment runs. `LoadInput` reads a host input.
struct LoadInput {
  InputId input;
};
struct LoadVariable {
  VariableId variable;
  bool is_shard = false;  // only the replica's part
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
// Loads the random state of one of the micro-batches that an action joins.
struct LoadRng {
  int64_t piece = 0;
};
// Loads the rows of a variable to which gradients were added in this window.
struct LoadVariableRows {
  VariableId variable;
  AccumulatorId accumulator;
};
struct LoadAccumulatorRows {
  AccumulatorId accumulator;
};
// Loads a register of a preparation, with the value of its last run.
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

// A store reads a register after the code of a segment has run. `StoreOutput` stores `num_pieces`
// pieces of an output, from number `piece` on, for the micro-batches that an action joins. Several
// pieces lie one after the other in the first dimension.
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
// Adds each row of a gradient in the register to the row of the sum that `indices` names.
struct AccumulateRows {
  AccumulatorId accumulator;
  RegisterId indices;
  int64_t num_rows;       // rows of the sum
  int64_t padding_index;  // index of rows that are not added; -1 if there is none
};
// Stores new values of those rows of a variable to which gradients were added in this window.
struct StoreVariableRows {
  VariableId variable;
  AccumulatorId accumulator;
};
using StoreTarget =
    std::variant<StoreOutput, StoreVariable, Accumulate, AccumulateRows, StoreVariableRows>;
struct Store {
  RegisterId source;
  StoreTarget target;
  // Whether nothing reads the register afterwards; set by `Program::find_last_uses`.
  bool is_last_use = false;
};

enum class SegmentKind {
  kMicroBatch,  // runs once for each micro-batch, as its own action
  kWindow,      // runs once for each window, on the replicas that are its runners
  // Computes values that depend only on variables, constants and scalars. Other segments read its
  // registers (`LoadPrepared`), and the lifetime says for how long the values are kept.
  kPreparation,
};

// Time for which the values of a preparation are kept.
enum class Lifetime {
  // Values are kept until the host writes a variable or scalar that the preparation loads. No
  // segment stores these variables.
  kCall,
  // Values are kept until the preparation's only variable changes, which an update may do. Each new
  // result overwrites the memory of the old one.
  kWindow,
};

// Ways in which several micro-batches may pass through a segment, from the strictest to the freest.
enum class Turns {
  kOneByOne,  // the next one begins after the one before has left
  kInTurn,    // they compute in parallel, and store in order
  kAnyOrder,  // each one leaves as soon as it can
};

// Straight-line code of one stage, or of one IPU's weight update.
struct Segment {
  std::string name;
  int64_t ipu;
  SegmentKind kind;
  Lifetime lifetime = Lifetime::kCall;  // lifetime of a preparation's values
  Turns turns = Turns::kOneByOne;       // of a segment in `Program::path`
  // Replicas that run a window segment: one for all, one for each group, or all of them. The
  // segment begins after every replica of the IPU has completed earlier actions.
  std::vector<int64_t> runners = {0};
  // Sums that the runners first add up over their group, each runner its own part.
  std::vector<AccumulatorId> reductions = {};
  // Exchanges with other processes, in this order: sums for all processes; sums of which each
  // process receives its replicas' parts; sharded sums to assemble; variables whose parts were
  // assigned. A segment with exchanges is in the network's row of the schedule and does only that.
  std::vector<AccumulatorId> exchanges = {};
  std::vector<AccumulatorId> scatters = {};
  std::vector<AccumulatorId> gathered_sums = {};
  std::vector<VariableId> gathers = {};
  // The collective that the segment carries out with other processes in each micro-batch. A segment
  // that relays is in the network's row, too, and one replica runs it.
  CollectiveId relayed = {};
  // Whether the segment calls user or host code, or prints, so that the order of runs is visible.
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
  // Returns the instructions that are collectives, in order.
  std::vector<const Instruction*> collectives() const;
};

// Returns whether a segment has a store with a target of type `Kind` for which `is` returns true.
template <typename Kind, typename Is>
bool has_store(const Segment& segment, const Is& is) {
  return std::any_of(segment.stores.begin(), segment.stores.end(), [&is](const Store& store) {
    const auto* target = std::get_if<Kind>(&store.target);
    return target != nullptr && is(*target);
  });
}

// A bounded FIFO that carries tensors from one segment to another of the same replica: a stash if
// both are on one IPU, otherwise a channel. Between window segments, the items of a single runner
// reach every runner of the consumer.
struct Link {
  SegmentId producer;
  std::vector<RegisterId> producer_registers;
  SegmentId consumer;
  std::vector<RegisterId> consumer_registers;
  int64_t capacity;
  // Links between the same two segments may differ in these flags.
  bool is_remote = false;  // the items wait in streaming memory
  // Whether each replica keeps a part of the values, which are equal on all replicas, until all
  // have read them. Only links between micro-batch segments can be sharded.
  bool is_sharded = false;
};

// The group of each replica; without entries, all replicas are in one group.
struct ReplicaGroups {
  std::vector<int64_t> of_replica = {};

  int64_t of(int64_t replica) const { return of_replica.empty() ? 0 : of_replica.at(replica); }
};

struct Variable {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  bool is_per_replica;
  // Groups of replicas that share a copy, unless each replica has its own.
  ReplicaGroups groups = {};
  // Whether each replica holds a part, instead of groups; not supported with several processes.
  bool is_sharded = false;
  bool is_remote = false;  // whether it lives in streaming memory
};
struct Scalar {
  std::string name;
  double value;
};
struct Accumulator {
  std::string name;
  at::ScalarType dtype;
  bool is_running_mean;
  // Groups of replicas; each group has its own sum.
  ReplicaGroups groups = {};
  // Whether each replica holds a part of the sum over all replicas, instead of groups. With several
  // processes the network's row adds to the sum.
  bool is_sharded = false;
  bool is_remote = false;
};
struct Input {
  std::string name;
  bool is_batched;
};

// Ways to return an output; the numbers equal those of PopTorch's enumeration.
enum class OutputMode { kFinal = 0, kEveryN = 1, kAll = 2, kSum = 3 };
struct Output {
  OutputMode mode;
  int64_t period;
};

// One run of a segment. An action of a micro-batch segment may join several micro-batches
// (`Program::joined`), which are counted as one here.
struct Action {
  SegmentId segment;
  int64_t micro_batch;
};

// Settings for numbers, which instructions do not contain.
struct Numerics {
  // Whether NaN or infinity in a result is an error if the operation's inputs did not contain it.
  bool checks_floating_point = false;
  // Whether gradients are rounded stochastically when they are added to a float16 accumulator.
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
  // The actions of each IPU in one window, in order.
  std::vector<std::vector<Action>> schedule;
  // Segments through which a worker may take a micro-batch, in order, instead of following the
  // lists of the schedule, with the same results; empty if it must follow them.
  std::vector<SegmentId> path;
  int64_t micro_batches_per_window = 1;
  // Number of consecutive micro-batches that one action runs as if they were one.
  int64_t joined = 1;
  Numerics numerics;

  // Returns how often a micro-batch segment runs in a window.
  int64_t runs_per_window() const { return micro_batches_per_window / joined; }

  Segment& at(SegmentId id) { return segments.at(id.value); }
  const Segment& at(SegmentId id) const { return segments.at(id.value); }

  // Marks the last store that reads each register; to be called after the program has been built.
  void find_last_uses();

  // Returns whether a segment adds to a sharded accumulator, which all replicas do together. Like a
  // window segment, it begins after every replica of its IPU has completed earlier actions.
  bool is_collective(const Segment& segment) const;

  // Returns whether micro-batches may add to a sum in any order and in parallel, so that the sum
  // restores the order. A checked sum may not, because an error names the micro-batch at fault.
  bool adds_in_any_order(AccumulatorId id) const;

  // Throws an `Error` that names the first fault; a valid program cannot fail for its form.
  void validate() const;
  // Parts of `validate`, for the schedule, the path, other processes, collectives and preparations.
  void check_schedule() const;
  void check_path() const;
  void check_network() const;
  void check_collectives() const;
  void check_preparations() const;

  // Throws `Error` if a valid program cannot run on this many replicas of one or more processes.
  void check_replicas(int64_t num_replicas, bool has_peers = false) const;

  // Returns a readable listing of the program.
  std::string text() const;
};

// Returns for example "float32[4, 3]" for a tensor, and a short form of any other value.
std::string describe(const c10::IValue& value);

}  // namespace poptorch_emu
