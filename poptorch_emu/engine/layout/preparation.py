"""Moves computations out of a segment that are not needed for each micro-batch.

The engine keeps a prepared value for all micro-batches that read it, for one of two lifetimes.
Operations do not change, so that no bit depends on the preparation.

Lifetime of a call: in inference, values that depend only on constants and unchanged weights are
computed before a call, and only if weights were written since the last call. Examples are a
transposed or packed weight, and a batch norm folded into a convolution. In an update, numbers that
depend only on hyper-parameters are prepared, too.

Lifetime of a window: a weight whose elements are only reordered is converted again after an update
has changed it. All segments share the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.segments.segment import Instruction, Register, Segment
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.torch_versions import OpOverload

# Operators that convert a weight, each with the overload that overwrites the last result.
_CONVERSIONS = {
    torch.ops.poptorch_emu.channels_last.default: torch.ops.poptorch_emu.channels_last.out,
    torch.ops.poptorch_emu.pack_weight.default: torch.ops.poptorch_emu.pack_weight.out,
}


@dataclass(frozen=True)
class Conversion:
    """A weight with its elements in another order.

    Attributes:
        weight: name of the variable.
        target: operator that converts the weight.
        args: other arguments of the operator.
        code: code that loads the weight and writes the register `RESULT`.
    """

    weight: str
    target: OpOverload
    args: tuple[Any, ...]
    code: Segment = field(compare=False)

    RESULT = 1


@dataclass(frozen=True)
class Prepared:
    """The code of a segment, divided by how often each part runs.

    Attributes:
        preparation: code that runs before a call, with the register numbers of `code`.
        code: code that runs for each micro-batch.
        shared: registers that `preparation` writes and `code` reads.
        conversions: weights that are converted once in each window, by their register in `code`.
    """

    preparation: Segment
    code: Segment
    shared: tuple[int, ...]
    conversions: Mapping[int, Conversion] = field(default_factory=dict)


def is_prepared(config: CompileConfig) -> bool:
    """Returns whether values are prepared for a call.

    Training changes its weights in each window. Operations stay in place if each one is checked, or
    if they round stochastically.
    """
    return not (config.is_training or config.checks_floating_point or config.rounds_stochastically)


def prepare(code: Segment, inventory: Inventory) -> Prepared:
    """Returns the code of a segment of micro-batches, and the values prepared for it."""
    config = inventory.config
    if not (config.is_training or is_prepared(config)):
        return _unprepared(code)
    fixed = set()
    if is_prepared(config):
        fixed = {r for source, r in code.loads.items() if _is_fixed(source, inventory)}
    conversions = _conversions(code, fixed, inventory)
    rest = [each for each in code.instructions if conversions.keys().isdisjoint(each.outputs)]
    parts = _parted(code.rewritten(rest, code.kept_registers()), fixed)
    return replace(parts, conversions=conversions)


def prepare_update(code: Segment, config: CompileConfig) -> Prepared:
    """Returns the code of a part of an update with its preparation, which may be empty."""
    if config.checks_floating_point:
        return _unprepared(code)
    return _parted(code, {r for s, r in code.loads.items() if s.kind is SourceKind.SCALAR})


def _unprepared(code: Segment) -> Prepared:
    return Prepared(replace(code, instructions=[]), code, ())


def _parted(code: Segment, fixed: set[int]) -> Prepared:
    exposed = _exposed(code, _repeated(code.instructions, fixed))
    before = _repeated(code.instructions, fixed, exposed)
    made = {register for each in before for register in each.outputs if register >= 0}
    rest = [each for each in code.instructions if made.isdisjoint(each.outputs)]
    kept = code.kept_registers()
    shared = made.intersection(register for each in rest for register in each.reads)
    return Prepared(
        replace(code, name=f"prepare {code.name}").rewritten(before, shared),
        code.rewritten(rest, kept),
        tuple(sorted(shared)),
    )


def _conversions(code: Segment, fixed: Set[int], inventory: Inventory) -> dict[int, Conversion]:
    """Returns the weights that are converted once in each window, by the result's register."""
    weights = {
        register: source.name
        for source, register in code.loads.items()
        if source.kind is SourceKind.VARIABLE
        and register not in fixed
        and _is_kept(inventory.variables[source.name], inventory)
    }
    exposed = _exposed(code, [])
    found = {}
    for instruction in code.instructions:
        if instruction.target not in _CONVERSIONS or not exposed.isdisjoint(instruction.outputs):
            continue
        (register,) = instruction.reads
        if register in weights:
            found[instruction.outputs[0]] = _conversion(weights[register], instruction)
    return found


def _conversion(weight: str, instruction: Instruction) -> Conversion:
    _, *args = instruction.args
    converting = replace(
        instruction,
        target=_CONVERSIONS[instruction.target],
        args=(Register(0), *args),
        kwargs={"out": Register(Conversion.RESULT)},
        outputs=[Conversion.RESULT],
        dies=[0],
    )
    code = Segment(
        f"prepare {weight}",
        loads={Source(SourceKind.VARIABLE, weight): 0},
        instructions=[converting],
        num_registers=2,
    )
    return Conversion(weight, instruction.target, tuple(args), code)


def _is_fixed(source: Source, inventory: Inventory) -> bool:
    """Returns whether a source is the same on all replicas until the host writes it."""
    if source.kind is not SourceKind.VARIABLE:
        return source.kind is SourceKind.CONSTANT
    variable = inventory.variables[source.name]
    is_shared = not (variable.is_per_replica or variable.group_of_replica)
    return is_shared and _is_kept(variable, inventory)


def _is_kept(variable: VariableInfo, inventory: Inventory) -> bool:
    """Returns whether a variable is whole, on chip, and the same for all micro-batches."""
    # With several processes, each one holds the whole variable.
    is_in_parts = variable.is_sharded and not inventory.config.is_distributed
    return not (
        is_in_parts
        or inventory.is_remote(variable)
        or Sink(SinkKind.VARIABLE, variable.name) in inventory.graph.sinks
    )


def _repeated(
    instructions: Sequence[Instruction], fixed: Set[int], exposed: Set[int] = frozenset()
) -> list[Instruction]:
    """Returns the operations that read only fixed registers and write no exposed register."""
    known = set(fixed)
    found = []
    for instruction in instructions:
        is_own = exposed.isdisjoint(instruction.outputs)
        traits = traits_of(instruction.target)
        is_repeated = traits.is_pure and not traits.crosses_replicas
        if is_own and is_repeated and known.issuperset(instruction.reads):
            found.append(instruction)
            known.update(instruction.outputs)
    return found


def _exposed(code: Segment, repeated: Sequence[Instruction]) -> set[int]:
    """Returns the registers that must be recomputed each time, because someone may write to them.

    Values that leave the segment, or that the user's code receives, may be overwritten. An
    operation may also return memory of its arguments.
    """
    exposed = code.kept_registers()
    for instruction in code.instructions:
        if instruction.bodies or traits_of(instruction.target).is_foreign:
            exposed.update(instruction.reads)
    for instruction in reversed(repeated):
        if not exposed.isdisjoint(instruction.outputs):
            exposed.update(instruction.reads)
    return exposed
