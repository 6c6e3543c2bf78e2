#pragma once

// The members of each structure of a program, for `Writer` and `Reader`. A structured binding names
// all members, so that this file does not compile after a member is added until someone decides
// here whether it is stored.

#include "program/archive.h"
#include "program/program.h"

namespace poptorch_emu {

template <>
inline constexpr int64_t kNumValues<SegmentKind> = 3;
template <>
inline constexpr int64_t kNumValues<Lifetime> = 2;
template <>
inline constexpr int64_t kNumValues<Turns> = 3;
template <>
inline constexpr int64_t kNumValues<OutputMode> = 4;

template <>
Instruction Reader::make<Instruction>();

// Stores all members of a structure, in their order.
#define POPTORCH_EMU_FIELDS(Structure, ...)             \
  template <typename Archive>                           \
  void fields(Archive& archive, Structure& structure) { \
    auto& [__VA_ARGS__] = structure;                    \
    archive(__VA_ARGS__);                               \
  }

POPTORCH_EMU_FIELDS(Debug, node, block, stage, module, source)
POPTORCH_EMU_FIELDS(Slot, argument, source)
POPTORCH_EMU_FIELDS(ListSlot, argument, sources, is_optional)

POPTORCH_EMU_FIELDS(LoadInput, input)
POPTORCH_EMU_FIELDS(LoadVariable, variable, is_shard)
POPTORCH_EMU_FIELDS(LoadConstant, constant)
POPTORCH_EMU_FIELDS(LoadScalar, scalar)
POPTORCH_EMU_FIELDS(LoadAccumulator, accumulator, is_shard)
POPTORCH_EMU_FIELDS(LoadRng, piece)
POPTORCH_EMU_FIELDS(LoadVariableRows, variable, accumulator)
POPTORCH_EMU_FIELDS(LoadAccumulatorRows, accumulator)
POPTORCH_EMU_FIELDS(LoadPrepared, preparation, source)
POPTORCH_EMU_FIELDS(Load, target, source)

POPTORCH_EMU_FIELDS(StoreOutput, output, piece, num_pieces)
POPTORCH_EMU_FIELDS(StoreVariable, variable, is_shard)
POPTORCH_EMU_FIELDS(Accumulate, accumulator)
POPTORCH_EMU_FIELDS(AccumulateRows, accumulator, indices, num_rows, padding_index)
POPTORCH_EMU_FIELDS(StoreVariableRows, variable, accumulator)
template <typename Archive>
void fields(Archive& archive, Store& store) {
  auto& [source, target, is_last_use] = store;  // `find_last_uses` sets `is_last_use`.
  archive(source, target);
}

template <typename Archive>
void fields(Archive& archive, Instruction& instruction) {
  auto& [op, arguments, slots, list_slots, outputs, dies, debug, control, bodies] = instruction;
  if constexpr (!Archive::kReads) {  // `read_instruction` has read the name already.
    archive(op.operator_name().name, op.operator_name().overload_name);
  }
  archive(arguments, slots, list_slots, outputs, dies, debug, bodies);
  control = control_of(op);
}

// Stores the number of registers before their writers, which need at least one byte each.
inline void registers(Writer& archive, int64_t count) { archive(count); }
inline void registers(Reader& archive, int64_t& count) { count = archive.length(); }

template <typename Archive>
void fields(Archive& archive, Body& body) {
  auto& [name, num_registers, parameters, iteration, instructions, results] = body;
  archive(name);
  registers(archive, num_registers);
  archive(parameters, iteration, instructions, results);
}

POPTORCH_EMU_FIELDS(CollectiveId, segment, index)
template <typename Archive>
void fields(Archive& archive, Segment& segment) {
  auto& [name, ipu, kind, lifetime, turns, runners, reductions, exchanges, scatters, gathered_sums,
         gathers, relayed, is_seen_outside, num_registers, loads, instructions, stores, incoming,
         outgoing] = segment;  // Links store the ends.
  archive(name, ipu, kind, lifetime, turns, runners, reductions, exchanges, scatters, gathered_sums,
          gathers, relayed, is_seen_outside);
  registers(archive, num_registers);
  archive(loads, instructions, stores);
}

POPTORCH_EMU_FIELDS(Link, producer, producer_registers, consumer, consumer_registers, capacity,
                    is_remote, is_sharded)
POPTORCH_EMU_FIELDS(ReplicaGroups, of_replica)
POPTORCH_EMU_FIELDS(Variable, name, shape, dtype, is_per_replica, groups, is_sharded, is_remote)
POPTORCH_EMU_FIELDS(Scalar, name, value)
POPTORCH_EMU_FIELDS(Accumulator, name, dtype, is_running_mean, groups, is_sharded, is_remote)
POPTORCH_EMU_FIELDS(Input, name, is_batched)
POPTORCH_EMU_FIELDS(Output, mode, period)
POPTORCH_EMU_FIELDS(Action, segment, micro_batch)
POPTORCH_EMU_FIELDS(Numerics, checks_floating_point, rounds_stochastically)
POPTORCH_EMU_FIELDS(Program, inputs, constants, variables, scalars, accumulators, outputs, segments,
                    links, schedule, path, micro_batches_per_window, joined, numerics)

#undef POPTORCH_EMU_FIELDS

}  // namespace poptorch_emu
