"""Takes out of a segment what need not be computed for each micro-batch.

The engine keeps a prepared value for all micro-batches that read it, for one of two lifetimes. Each
operation stays what it was, so that no bit depends on it.

For a call: in inference, what depends on nothing but constants and weights that no call changes (a
transposed or packed weight, a batch norm folded into a convolution) is computed before a call, and
only when weights have been written since the last one. So are numbers of an update that depend on
hyper-parameters alone.

For a window: a weight whose elements are only brought into another order is converted again when
an update has changed it. All segments share the result.
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

# Operators that convert a weight, with those that write into the memory of the last result.
_CONVERSIONS = {
    torch.ops.poptorch_emu.channels_last.default: torch.ops.poptorch_emu.channels_last.out,
    torch.ops.poptorch_emu.pack_weight.default: torch.ops.poptorch_emu.pack_weight.out,
}


@dataclass(frozen=True)
class Conversion:
    """A weight with its elements in another order.

    Attributes:
        weight: the name of the variable.
        target: the operator that converts it.
        args: the other arguments of the operator.
        code: loads the weight and fills the register `RESULT`.
    """

    weight: str
    target: OpOverload
    args: tuple[Any, ...]
    code: Segment = field(compare=False)

    RESULT = 1


@dataclass(frozen=True)
class Prepared:
    """What became of the code of a segment.

    Attributes:
        preparation: what runs before a call; a register has the same number here and in `code`.
        code: what runs for each micro-batch.
        shared: the registers that the first fills for the second.
        conversions: by register of the second, the weights that are converted once a window.
    """

    preparation: Segment
    code: Segment
    shared: tuple[int, ...]
    conversions: Mapping[int, Conversion] = field(default_factory=dict)


def is_prepared(config: CompileConfig) -> bool:
    """Returns whether anything is prepared for a call.

    Training changes its weights in each window. Where operations are looked at one by one, or round
    at random, they are left as the user wrote them.
    """
    return not (config.is_training or config.checks_floating_point or config.rounds_stochastically)


def prepare(code: Segment, inventory: Inventory) -> Prepared:
    """Returns the code of a segment of micro-batches, and what is prepared for it."""
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
    """Returns the code of a part of an update in two parts; the first may be empty."""
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
    """Returns the weights that are converted once a window, by the register of the result."""
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
    # Of several processes each holds it whole.
    is_in_parts = variable.is_sharded and not inventory.config.is_distributed
    return not (
        is_in_parts
        or inventory.is_remote(variable)
        or Sink(SinkKind.VARIABLE, variable.name) in inventory.graph.sinks
    )


def _repeated(
    instructions: Sequence[Instruction], fixed: Set[int], exposed: Set[int] = frozenset()
) -> list[Instruction]:
    """Returns the operations that compute on fixed registers alone, and no exposed one."""
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
    """Returns the registers that are to be made anew each time, since somebody may write in them.

    What leaves the segment, or is given to code of the user's, may be written, and any operation
    may have returned what it was given.
    """
    exposed = code.kept_registers()
    for instruction in code.instructions:
        if instruction.bodies or traits_of(instruction.target).is_foreign:
            exposed.update(instruction.reads)
    for instruction in reversed(repeated):
        if not exposed.isdisjoint(instruction.outputs):
            exposed.update(instruction.reads)
    return exposed
