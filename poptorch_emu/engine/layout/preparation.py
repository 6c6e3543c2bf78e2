"""Takes out of a segment what is the same during a call.

In inference, what depends on nothing but constants and weights that no call changes (a transposed
or packed weight, a batch norm folded into a convolution) is computed before a call, and only when
weights have been written since the last one. The engine keeps it for all micro-batches and
replicas. So it does with numbers of an update that depend on hyper-parameters alone. Each operation
stays what it was, so that no bit depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.segments.segment import Instruction, Segment


@dataclass(frozen=True)
class Prepared:
    """The two codes that became of one; a register has the same number in both.

    Attributes:
        preparation: what runs when weights have changed.
        code: what runs for each micro-batch.
        shared: the registers that the first fills for the second.
    """

    preparation: Segment
    code: Segment
    shared: tuple[int, ...]


def is_prepared(config: CompileConfig) -> bool:
    """Returns whether anything is prepared.

    Training changes its weights in each window. Where operations are looked at one by one, or round
    at random, they are left as the user wrote them.
    """
    return not (config.is_training or config.checks_floating_point or config.rounds_stochastically)


def prepare(code: Segment, inventory: Inventory) -> Prepared:
    """Returns the code of a segment of micro-batches in two parts; the first may be empty."""
    if not is_prepared(inventory.config):
        return _unprepared(code)
    fixed = {register for source, register in code.loads.items() if _is_fixed(source, inventory)}
    return _parted(code, fixed)


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
    shared = made.intersection(register for each in rest for register in each.reads())
    return Prepared(
        replace(code, name=f"prepare {code.name}").rewritten(before, shared),
        code.rewritten(rest, kept),
        tuple(sorted(shared)),
    )


def _is_fixed(source: Source, inventory: Inventory) -> bool:
    """Returns whether a source is whole, on chip, and the same until the host writes it."""
    if source.kind is not SourceKind.VARIABLE:
        return source.kind is SourceKind.CONSTANT
    variable = inventory.variables[source.name]
    return not (
        variable.is_per_replica
        or variable.is_sharded
        or variable.group_of_replica
        or inventory.is_remote(variable)
        or Sink(SinkKind.VARIABLE, source.name) in inventory.graph.sinks
    )


def _repeated(
    instructions: Sequence[Instruction], fixed: Set[int], exposed: Set[int] = frozenset()
) -> list[Instruction]:
    """Returns the operations that compute on fixed registers alone, and no exposed one."""
    known = set(fixed)
    found = []
    for instruction in instructions:
        is_own = exposed.isdisjoint(instruction.outputs)
        is_pure = traits_of(instruction.target).is_pure
        if is_own and is_pure and known.issuperset(instruction.reads()):
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
            exposed.update(instruction.reads())
    for instruction in reversed(repeated):
        if not exposed.isdisjoint(instruction.outputs):
            exposed.update(instruction.reads())
    return exposed
