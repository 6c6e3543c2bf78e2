#pragma once

// The members of each structure of a program, for `Writer` and `Reader`. A structured binding names
// them all: when a member is added this file no longer compiles, until it is decided here whether
// the member is stored.

#include "program/archive.h"
#include "program/program.h"

namespace poptorch_emu {

template <>
struct Count<SegmentKind> {
  static constexpr int64_t value = 3;
};
template <>
struct Count<Lifetime> {
  static constexpr int64_t value = 2;
};
template <>
struct Count<OutputMode> {
  static constexpr int64_t value = 4;
};

template <>
Instruction Reader::make<Instruction>();

template <typename Archive>
void fields(Archive& archive, Debug& debug) {
  auto& [node, block, stage, module, source] = debug;
  archive(node, block, stage, module, source);
}

template <typename Archive>
void fields(Archive& archive, Slot& slot) {
  auto& [argument, source] = slot;
  archive(argument, source);
}

template <typename Archive>
void fields(Archive& archive, ListSlot& slot) {
  auto& [argument, sources, is_optional] = slot;
  archive(argument, sources, is_optional);
}

template <typename Archive>
void fields(Archive& archive, LoadInput& load) {
  auto& [input] = load;
  archive(input);
}
template <typename Archive>
void fields(Archive& archive, LoadVariable& load) {
  auto& [variable, is_shard] = load;
  archive(variable, is_shard);
}
template <typename Archive>
void fields(Archive& archive, LoadConstant& load) {
  auto& [constant] = load;
  archive(constant);
}
template <typename Archive>
void fields(Archive& archive, LoadScalar& load) {
  auto& [scalar] = load;
  archive(scalar);
}
template <typename Archive>
void fields(Archive& archive, LoadAccumulator& load) {
  auto& [accumulator, is_shard] = load;
  archive(accumulator, is_shard);
}
template <typename Archive>
void fields(Archive& archive, LoadRng& load) {
  auto& [piece] = load;
  archive(piece);
}
template <typename Archive>
void fields(Archive& archive, LoadVariableRows& load) {
  auto& [variable, accumulator] = load;
  archive(variable, accumulator);
}
template <typename Archive>
void fields(Archive& archive, LoadAccumulatorRows& load) {
  auto& [accumulator] = load;
  archive(accumulator);
}
template <typename Archive>
void fields(Archive& archive, LoadPrepared& load) {
  auto& [preparation, source] = load;
  archive(preparation, source);
}
template <typename Archive>
void fields(Archive& archive, Load& load) {
  auto& [target, source] = load;
  archive(target, source);
}

template <typename Archive>
void fields(Archive& archive, StoreOutput& store) {
  auto& [output, piece, num_pieces] = store;
  archive(output, piece, num_pieces);
}
template <typename Archive>
void fields(Archive& archive, StoreVariable& store) {
  auto& [variable, is_shard] = store;
  archive(variable, is_shard);
}
template <typename Archive>
void fields(Archive& archive, Accumulate& store) {
  auto& [accumulator] = store;
  archive(accumulator);
}
template <typename Archive>
void fields(Archive& archive, AccumulateRows& store) {
  auto& [accumulator, indices, num_rows, padding_index] = store;
  archive(accumulator, indices, num_rows, padding_index);
}
template <typename Archive>
void fields(Archive& archive, StoreVariableRows& store) {
  auto& [variable, accumulator] = store;
  archive(variable, accumulator);
}
template <typename Archive>
void fields(Archive& archive, Store& store) {
  auto& [source, target, is_last_use] = store;  // The last is found again by `find_last_uses`.
  archive(source, target);
}

template <typename Archive>
void fields(Archive& archive, Instruction& instruction) {
  auto& [op, arguments, slots, list_slots, outputs, dies, debug, control, bodies] = instruction;
  if constexpr (!Archive::kReads) {  // `read_instruction` has read it already.
    archive(op.operator_name().name, op.operator_name().overload_name);
  }
  archive(arguments, slots, list_slots, outputs, dies, debug, bodies);
  control = control_of(op);
}

// The number of registers stands before what writes them, which takes at least one byte for each.
inline void registers(Writer& archive, int64_t count) { archive(count); }
inline void registers(Reader& archive, int64_t& count) { count = archive.length(); }

template <typename Archive>
void fields(Archive& archive, Body& body) {
  auto& [name, num_registers, parameters, iteration, instructions, results] = body;
  archive(name);
  registers(archive, num_registers);
  archive(parameters, iteration, instructions, results);
}

template <typename Archive>
void fields(Archive& archive, CollectiveId& id) {
  auto& [segment, index] = id;
  archive(segment, index);
}

template <typename Archive>
void fields(Archive& archive, Segment& segment) {
  auto& [name, ipu, kind, lifetime, runners, reductions, exchanges, scatters, gathered_sums,
         gathers, relayed, is_seen_outside, num_registers, loads, instructions, stores, incoming,
         outgoing] = segment;  // Links know their ends.
  archive(name, ipu, kind, lifetime, runners, reductions, exchanges, scatters, gathered_sums,
          gathers, relayed, is_seen_outside);
  registers(archive, num_registers);
  archive(loads, instructions, stores);
}

template <typename Archive>
void fields(Archive& archive, Link& link) {
  auto& [producer, producer_registers, consumer, consumer_registers, capacity, is_remote,
         is_sharded] = link;
  archive(producer, producer_registers, consumer, consumer_registers, capacity, is_remote,
          is_sharded);
}

template <typename Archive>
void fields(Archive& archive, ReplicaGroups& groups) {
  auto& [of_replica] = groups;
  archive(of_replica);
}

template <typename Archive>
void fields(Archive& archive, Variable& variable) {
  auto& [name, shape, dtype, is_per_replica, groups, is_sharded, is_remote] = variable;
  archive(name, shape, dtype, is_per_replica, groups, is_sharded, is_remote);
}

template <typename Archive>
void fields(Archive& archive, Scalar& scalar) {
  auto& [name, value] = scalar;
  archive(name, value);
}

template <typename Archive>
void fields(Archive& archive, Accumulator& accumulator) {
  auto& [name, dtype, is_running_mean, groups, is_sharded, is_remote] = accumulator;
  archive(name, dtype, is_running_mean, groups, is_sharded, is_remote);
}

template <typename Archive>
void fields(Archive& archive, Input& input) {
  auto& [name, is_batched] = input;
  archive(name, is_batched);
}

template <typename Archive>
void fields(Archive& archive, Output& output) {
  auto& [mode, period] = output;
  archive(mode, period);
}

template <typename Archive>
void fields(Archive& archive, Action& action) {
  auto& [segment, micro_batch] = action;
  archive(segment, micro_batch);
}

template <typename Archive>
void fields(Archive& archive, Numerics& numerics) {
  auto& [checks_floating_point, rounds_stochastically] = numerics;
  archive(checks_floating_point, rounds_stochastically);
}

template <typename Archive>
void fields(Archive& archive, Program& program) {
  auto& [inputs, constants, variables, scalars, accumulators, outputs, segments, links, schedule,
         micro_batches_per_window, joined, numerics] = program;
  archive(inputs, constants, variables, scalars, accumulators, outputs, segments, links, schedule,
          micro_batches_per_window, joined, numerics);
}

}  // namespace poptorch_emu
