"""Divides units (blocks or modules) into stages so that the slowest IPU is as fast as possible.

The cost of a stage depends only on its first unit, its last unit and its number, so dynamic
programming finds the best division. All uses of one weight must be on one IPU: in one stage, or in
the first and the last stage, if the last one is on the first IPU again (a circle).
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.links import copy_cycles
from poptorch_emu.machine.tile_memory import fullest_bytes
from poptorch_emu.printed.records import Record
from poptorch_emu.schedule.stash import stash_slots

# Assumed program size of a training graph of a few large layers; published sizes are 45 to 140 kB.
_PROGRAM_BYTES = 100_000
# Relative difference of the fullest tiles below which two divisions count as equally large.
_NEAR = 0.01


@dataclass(frozen=True)
class Unit:
    """A block or a module, which a division into stages keeps whole.

    Attributes:
        name: name of the block or module.
        forward_cycles: cycles of its forward operations.
        backward_cycles: cycles of its backward operations.
        held_bytes: bytes of its weights, optimiser state and accumulators.
        activation_bytes: bytes of all results of its operations.
        sent_bytes: bytes that it or an earlier unit sends to later units.
        host_cycles: cycles that it waits for inputs from the host.
        has_checkpoint: whether the user marked one of its results as a checkpoint.
    """

    name: str
    forward_cycles: float
    backward_cycles: float
    held_bytes: int
    activation_bytes: int
    sent_bytes: int
    host_cycles: float = 0.0
    has_checkpoint: bool = False


@dataclass(frozen=True)
class Tie:
    """A weight that several units use.

    Attributes:
        weight: name of the weight.
        units: indices of the units that use the weight.
    """

    weight: str
    units: tuple[int, ...]


@dataclass(frozen=True)
class StageSplit(Record):
    """One stage of a division.

    Attributes:
        ipu: IPU of the stage: its number, or 0 for the last stage of a circle.
        units: names of its units, in order.
        cycles: cycles of a micro-batch, including recomputation and copies from other IPUs.
        tile_bytes: bytes of the fullest tile of its IPU.
    """

    ipu: int
    units: tuple[str, ...]
    cycles: float
    tile_bytes: int


@dataclass(frozen=True)
class Split:
    """The best division of a model into stages.

    Attributes:
        stages: stages in order: one for each IPU, and in a circle one more on the first IPU.
        fits: whether all stages fit their IPUs. If no division fits, this is one of the nearest.
        is_of_blocks: whether the units are the user's blocks; otherwise they are modules.
        clock_hz: clock of the tiles, in Hz.
        replaces_blocks: whether the units are modules although the model has blocks, which
            `BeginBlock` begins; there are too few of them.
    """

    stages: tuple[StageSplit, ...]
    fits: bool
    is_of_blocks: bool
    clock_hz: float
    replaces_blocks: bool = False

    @property
    def is_circle(self) -> bool:
        """Whether the last stage is on the first IPU again."""
        return len(self.stages) > 1 and self.stages[-1].ipu == 0


@dataclass(frozen=True)
class StageCosts:
    """Cycles and memory of every possible stage.

    Attributes:
        units: units of the model, in order.
        num_stages: number of forward stages.
        recomputes: whether backward recomputes the forward of each stage, and of the last stage
            what is before its last checkpoint.
        ties: weights whose uses must be on one IPU.
        num_micro_batches: number of micro-batches of a window.
        is_circle: whether the last stage is on the IPU of the first.
    """

    units: Sequence[Unit]
    num_stages: int
    tiles: Tiles
    is_training: bool
    recomputes: bool
    ties: tuple[Tie, ...] = ()
    num_micro_batches: int = 1
    is_circle: bool = False

    def ipu_of(self, stage: int) -> int:
        """Returns the IPU of a stage."""
        return 0 if self.is_circle and stage == self.num_stages - 1 else stage

    @property
    def num_slots(self) -> int:
        """Number of pipeline cycles of a window with a grouped schedule."""
        ramp = self.num_stages - 1
        return self.num_micro_batches + (2 * ramp if self.is_training else ramp)

    def cycles(self, first: int, last: int, stage: int) -> float:
        """Returns the cycles of a stage that consists of the units from `first` to `last`."""
        forward, both = self._sums
        total = both[last + 1] - both[first]
        is_last = stage == self.num_stages - 1
        if self.recomputes:
            end = max(first, self._num_checkpointed) if is_last else last + 1
            total += forward[end] - forward[first]
        chip, numbers, ipu = self.tiles.chip, self.tiles.numbers, self.ipu_of(stage)
        if stage:
            total += copy_cycles(self._given(first), self.ipu_of(stage - 1), ipu, chip, numbers)
        if self.is_training and not is_last:
            sent = self.units[last].sent_bytes
            total += copy_cycles(sent, self.ipu_of(stage + 1), ipu, chip, numbers)
        return total

    @cached_property
    def _num_checkpointed(self) -> int:
        """Number of units up to the last one with a checkpoint."""
        marked = (n for n, unit in enumerate(self.units, start=1) if unit.has_checkpoint)
        return max(marked, default=0)

    @cached_property
    def _sums(self) -> tuple[list[float], list[float]]:
        """Sums of the forward cycles, and of all cycles, over the units before each unit."""
        forward = [unit.forward_cycles for unit in self.units]
        others = [unit.backward_cycles + unit.host_cycles for unit in self.units]
        both = map(operator.add, forward, others)
        return list(accumulate(forward, initial=0.0)), list(accumulate(both, initial=0.0))

    def tile_bytes(self, *stages: tuple[int, int, int]) -> int:
        """Returns the bytes of the fullest tile of an IPU.

        Args:
            stages: first unit, last unit and number of each stage that the IPU runs.
        """
        found = [self._bytes(*stage) for stage in stages]
        # Without recomputation, activations live until backward, so those of all stages add up.
        are_live = sum if self.is_training and not self.recomputes else max
        num_bytes = sum(held for held, _ in found) + are_live([live for _, live in found])
        return fullest_bytes(num_bytes / self.tiles.count + _PROGRAM_BYTES)

    def _bytes(self, first: int, last: int, stage: int) -> tuple[int, int]:
        """Returns the bytes that a stage always holds, and those that are live while it runs."""
        units = self.units[first : last + 1]
        held = sum(unit.held_bytes for unit in units)
        if not self.is_training:
            return held, max(unit.activation_bytes for unit in units)
        live = sum(unit.activation_bytes for unit in units)
        slots = stash_slots(stage, self.num_stages) - 1
        return held + slots * (self._given(first) if self.recomputes else live), live

    def keeps_ties(self, first: int, last: int) -> bool:
        """Returns whether the units use each tied weight either completely or not at all."""
        return all(len({first <= unit <= last for unit in tie.units}) == 1 for tie in self.ties)

    def _given(self, first: int) -> int:
        return self.units[first - 1].sent_bytes if first else 0


def best_split(costs: StageCosts, *, is_of_blocks: bool, has_limit: bool = True) -> Split:
    """Returns the fastest division that fits; if none fits, one of the nearest to the limit.

    A division is as fast as its slowest IPU. The nearest is the fastest of those whose fullest tile
    holds least, within `_NEAR`.

    Args:
        costs: costs with one stage for each IPU. If weights are tied, a circle is tried as well.
        is_of_blocks: whether the units are the user's blocks.
        has_limit: whether a division must fit in memory.

    Raises:
        ValueError: units are fewer than stages, or no division keeps tied weights on one IPU.
    """
    _check_units(costs)
    forms = [costs]
    if costs.ties and 1 < costs.num_stages < len(costs.units):
        forms.append(replace(costs, num_stages=costs.num_stages + 1, is_circle=True))
    limit = costs.tiles.chip.tile_bytes
    found = _fastest(forms, limit if has_limit else None)
    if found is not None:
        return _split(*found, True, is_of_blocks)
    nearest = _nearest(forms, limit)
    if nearest is not None:
        return _split(*nearest, False, is_of_blocks)
    tie = costs.ties[0]
    names = ", ".join(repr(costs.units[unit].name) for unit in tie.units)
    raise ValueError(
        f"No split over {costs.num_stages} IPUs keeps the weight {tie.weight!r} on one of them, "
        f"since the units {names} use it. Use fewer IPUs, or give each unit a weight of its own."
    )


def _fastest(forms: Sequence[StageCosts], limit: int | None) -> _Ended | None:
    """Returns the fastest division whose tiles hold at most `limit` bytes, or None."""
    found = [(form, best) for form in forms if (best := _cut(form, limit)) is not None]
    if not found:
        return None
    form, (_, ends) = min(found, key=lambda pair: pair[0].num_slots * pair[1][0])
    return form, ends


def _nearest(forms: Sequence[StageCosts], limit: int) -> _Ended | None:
    """Returns the fastest of the divisions that exceed `limit` least; all of them exceed it."""
    found, too_few = _fastest(forms, None), limit
    if found is None:
        return None
    enough = _fullest_bytes(*found)
    while enough > (1 + _NEAR) * too_few:
        middle = (enough + too_few) // 2
        better = _fastest(forms, middle)
        if better is None:
            too_few = middle
        else:
            found, enough = better, _fullest_bytes(*better)
    return found


def _fullest_bytes(costs: StageCosts, ends: tuple[int, ...]) -> int:
    return max(stage.tile_bytes for stage in _split(costs, ends, False, True).stages)


def _check_units(costs: StageCosts) -> None:
    if len(costs.units) < costs.num_stages:
        raise ValueError(
            f"{len(costs.units)} units cannot be cut into {costs.num_stages} stages: name more "
            "blocks, or use fewer IPUs."
        )


def _split(costs: StageCosts, ends: tuple[int, ...], fits: bool, is_of_blocks: bool) -> Split:
    firsts = [0, *(end + 1 for end in ends[:-1])]
    pieces = [(*piece, stage) for stage, piece in enumerate(zip(firsts, ends, strict=True))]
    of_ipu: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for piece in pieces:
        of_ipu[costs.ipu_of(piece[2])].append(piece)
    stages = tuple(
        StageSplit(
            costs.ipu_of(stage),
            tuple(unit.name for unit in costs.units[first : last + 1]),
            costs.cycles(first, last, stage),
            costs.tile_bytes(*of_ipu[costs.ipu_of(stage)]),
        )
        for first, last, stage in pieces
    )
    return Split(stages, fits, is_of_blocks, costs.tiles.chip.clock_hz)


# A form of the division into stages (plain or circular), and the last unit of each stage.
_Ended = tuple[StageCosts, tuple[int, ...]]
# Cycles of the slowest IPU in a division into stages, and the last unit of each stage.
_Cut = tuple[float, tuple[int, ...]]


def _cut(costs: StageCosts, limit: int | None) -> _Cut | None:
    """Returns the best division into stages; None if no division is allowed.

    Args:
        costs: costs of a plain or a circular form.
        limit: largest bytes of a tile; None allows any.
    """
    if costs.is_circle:
        return min(_circles(costs, limit), default=None)
    best: dict[int, _Cut] = {-1: (0.0, ())}
    for stage in range(costs.num_stages):
        best = _extend(costs, best, stage, limit)
    return best.get(len(costs.units) - 1)


def _circles(costs: StageCosts, limit: int | None) -> Iterator[_Cut]:
    """Yields, for each pair of a first and a last stage, the best division of the units between."""
    end, last_stage = len(costs.units) - 1, costs.num_stages - 1
    for first_end in range(end):
        best: dict[int, _Cut] = {first_end: (0.0, (first_end,))}
        for stage in range(1, last_stage):
            best = _extend(costs, best, stage, limit)
        for before, (slowest, ends) in best.items():
            pieces = (0, first_end, 0), (before + 1, end, last_stage)
            if limit is None or costs.tile_bytes(*pieces) <= limit:
                yield max(slowest, sum(costs.cycles(*piece) for piece in pieces)), (*ends, end)


def _extend(
    costs: StageCosts, best: dict[int, _Cut], stage: int, limit: int | None
) -> dict[int, _Cut]:
    """Returns the best divisions with one more stage, by their last unit.

    Args:
        costs: costs of a plain or a circular form.
        best: best divisions into the stages before, by their last unit.
        stage: number of the stage that is added.
        limit: largest bytes of a tile; None allows any.
    """
    count, behind = len(costs.units), costs.num_stages - 1 - stage  # Each later stage needs 1 unit.
    found: dict[int, _Cut] = {}
    for before, (slowest, ends) in best.items():
        lasts = range(before + 1, count - behind) if behind else (count - 1,)
        for last in lasts:
            piece = before + 1, last, stage
            if not costs.keeps_ties(before + 1, last):
                continue
            if limit is not None and costs.tile_bytes(piece) > limit:
                continue
            candidate = max(slowest, costs.cycles(*piece)), (*ends, last)
            found[last] = min(found.get(last, candidate), candidate)
    return found
