"""Where to cut a row of units (blocks or modules) into stages, so that the slowest is fastest.

The cost of a stage depends on its first and last unit and on its number alone, so that dynamic
programming finds the best of all ways to cut. All uses of one weight must be on one IPU: in one
stage, or in the first stage and in one more at the end, which is on the first IPU again.
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
from poptorch_emu.schedule.stash import stash_slots

# Assumed for a training graph of a few large layers, between the published 45 and 140 kB.
_PROGRAM_BYTES = 100_000
# Two cuts whose fullest tiles differ by a smaller share need as much, as far as is known.
_NEAR = 0.01


@dataclass(frozen=True)
class Unit:
    """What is not cut.

    Attributes:
        name: of a block or a module.
        forward_cycles: of its operations.
        backward_cycles: likewise.
        held_bytes: weights, and what the optimiser keeps of them.
        activation_bytes: of all its results.
        sent_bytes: that it or a unit before it sends to the units behind it.
        host_cycles: of inputs that it waits for.
    """

    name: str
    forward_cycles: float
    backward_cycles: float
    held_bytes: int
    activation_bytes: int
    sent_bytes: int
    host_cycles: float = 0.0


@dataclass(frozen=True)
class Tie:
    """A weight that several units use.

    Attributes:
        weight: its name.
        units: their indices.
    """

    weight: str
    units: tuple[int, ...]


@dataclass(frozen=True)
class StageSplit:
    """A stage of a split.

    Attributes:
        ipu: that runs it: the number of the stage, or 0 again for one that closes a circle.
        units: names, in order.
        cycles: for a micro-batch, recomputation and copies from other IPUs included.
        tile_bytes: of the fullest tile of its IPU.
    """

    ipu: int
    units: tuple[str, ...]
    cycles: float
    tile_bytes: int


@dataclass(frozen=True)
class Split:
    """The best way to cut.

    Attributes:
        stages: in order, one for each IPU, and perhaps one more on the first.
        fits: whether all stages do; if none of the ways fits, this is one that is nearest to it.
        is_of_blocks: whether units are the user's blocks; else they are modules.
        clock_hz: of the tiles.
    """

    stages: tuple[StageSplit, ...]
    fits: bool
    is_of_blocks: bool
    clock_hz: float

    @property
    def is_circle(self) -> bool:
        """Whether the last stage is on the first IPU again."""
        return len(self.stages) > 1 and self.stages[-1].ipu == 0

    @property
    def slowest_seconds(self) -> float:
        """How long the slowest IPU takes for a micro-batch."""
        cycles: defaultdict[int, float] = defaultdict(float)
        for stage in self.stages:
            cycles[stage.ipu] += stage.cycles
        return max(cycles.values()) / self.clock_hz


@dataclass(frozen=True)
class StageCosts:
    """What a stage of some units takes.

    Attributes:
        num_stages: of forward.
        recomputes: whether backward runs the forward of all stages but the last again.
        ties: weights whose uses must be on one IPU.
        num_micro_batches: of a window, for which pipelines fill and empty.
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
        """How many cycles of a grouped pipeline a window takes."""
        ramp = self.num_stages - 1
        return self.num_micro_batches + (2 * ramp if self.is_training else ramp)

    def cycles(self, first: int, last: int, stage: int) -> float:
        """Returns how long the units from `first` to `last` take as a stage."""
        forward, total = (sums[last + 1] - sums[first] for sums in self._sums)
        is_last = stage == self.num_stages - 1
        if self.recomputes and not is_last:
            total += forward
        chip, numbers, ipu = self.tiles.chip, self.tiles.numbers, self.ipu_of(stage)
        if stage:
            total += copy_cycles(self._given(first), self.ipu_of(stage - 1), ipu, chip, numbers)
        if self.is_training and not is_last:
            sent = self.units[last].sent_bytes
            total += copy_cycles(sent, self.ipu_of(stage + 1), ipu, chip, numbers)
        return total

    @cached_property
    def _sums(self) -> tuple[list[float], list[float]]:
        """The cycles of forward, and of all, of the units before each one."""
        forward = [unit.forward_cycles for unit in self.units]
        others = [unit.backward_cycles + unit.host_cycles for unit in self.units]
        both = map(operator.add, forward, others)
        return list(accumulate(forward, initial=0.0)), list(accumulate(both, initial=0.0))

    def tile_bytes(self, *stages: tuple[int, int, int]) -> int:
        """Returns what the fullest tile of an IPU holds.

        Args:
            stages: all that it runs: first and last unit, and number.
        """
        found = [self._bytes(*stage) for stage in stages]
        # What does not wait to be computed again is there until the backward of its own stage.
        are_live = sum if self.is_training and not self.recomputes else max
        num_bytes = sum(held for held, _ in found) + are_live([live for _, live in found])
        return fullest_bytes(num_bytes / self.tiles.count + _PROGRAM_BYTES)

    def _bytes(self, first: int, last: int, stage: int) -> tuple[int, int]:
        """Returns what a stage always holds, and what it does while it runs."""
        units = self.units[first : last + 1]
        held = sum(unit.held_bytes for unit in units)
        if not self.is_training:
            return held, max(unit.activation_bytes for unit in units)
        live = sum(unit.activation_bytes for unit in units)
        slots = stash_slots(stage, self.num_stages) - 1
        return held + slots * (self._given(first) if self.recomputes else live), live

    def keeps_ties(self, first: int, last: int) -> bool:
        """Returns whether of the uses of each weight the units have all or none."""
        return all(len({first <= unit <= last for unit in tie.units}) == 1 for tie in self.ties)

    def _given(self, first: int) -> int:
        return self.units[first - 1].sent_bytes if first else 0


def best_split(costs: StageCosts, *, is_of_blocks: bool, has_limit: bool = True) -> Split:
    """Returns the cut that is the fastest of all that fit; if none does, one that is nearest to it.

    Of cuts into as many stages the fastest is that whose slowest IPU is the fastest. The nearest
    is the fastest of those whose fullest tile holds least, within `_NEAR`.

    Args:
        costs: with a stage for each IPU; where weights are tied, a circle is tried as well.
        is_of_blocks: whether the units are the user's blocks.
        has_limit: whether memory counts.

    Raises:
        ValueError: there are fewer units than stages, or tied weights cannot stay on one IPU.
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
    """Returns the fastest cut of some forms whose tiles hold no more, if there is one."""
    found = [(form, best) for form in forms if (best := _cut(form, limit)) is not None]
    if not found:
        return None
    form, (_, ends) = min(found, key=lambda pair: pair[0].num_slots * pair[1][0])
    return form, ends


def _nearest(forms: Sequence[StageCosts], limit: int) -> _Ended | None:
    """Returns the fastest cut of those that are nearest to a limit which none keeps."""
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


# The last unit of each stage of a form.
_Ended = tuple[StageCosts, tuple[int, ...]]
# The slowest IPU of some stages, and the last unit of each of them.
_Cut = tuple[float, tuple[int, ...]]


def _cut(costs: StageCosts, limit: int | None) -> _Cut | None:
    """Returns the best cut, `None` if nothing is allowed.

    Args:
        costs: of one form.
        limit: bytes of a tile; `None` allows any.
    """
    if costs.is_circle:
        return min(_circles(costs, limit), default=None)
    best: dict[int, _Cut] = {-1: (0.0, ())}
    for stage in range(costs.num_stages):
        best = _extend(costs, best, stage, limit)
    return best.get(len(costs.units) - 1)


def _circles(costs: StageCosts, limit: int | None) -> Iterator[_Cut]:
    """Yields for each first stage and each last one the best cut of what is between them."""
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
    """Returns the best cuts with one stage more, by their last unit.

    Args:
        costs: of one form.
        best: of the stages before, likewise.
        stage: the number of the one that is added.
        limit: bytes of a tile; `None` allows any.
    """
    count, behind = len(costs.units), costs.num_stages - 1 - stage  # Each needs a unit.
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
