"""Where to cut a row of units (blocks or modules) into stages, so that the slowest is fastest.

The cost of a stage depends on its first and last unit and on its number alone, so that dynamic
programming finds the best of all ways to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.links import copy_cycles
from poptorch_emu.machine.tile_memory import fullest_bytes
from poptorch_emu.schedule.stash import stash_slots

# Assumed for a training graph of a few large layers, between the published 45 and 140 kB.
_PROGRAM_BYTES = 100_000


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
class StageSplit:
    """A stage of a split.

    Attributes:
        ipu: that runs it, the number of the stage.
        units: names, in order.
        cycles: for a micro-batch, recomputation and copies from other IPUs included.
        tile_bytes: of the fullest tile.
    """

    ipu: int
    units: tuple[str, ...]
    cycles: float
    tile_bytes: int


@dataclass(frozen=True)
class Split:
    """The best way to cut.

    Attributes:
        stages: in order, one for each IPU.
        fits: whether all stages do; if none of the ways fits, this is the fastest of them.
        is_of_blocks: whether units are the user's blocks; else they are modules.
        clock_hz: of the tiles.
    """

    stages: tuple[StageSplit, ...]
    fits: bool
    is_of_blocks: bool
    clock_hz: float

    @property
    def slowest_seconds(self) -> float:
        """How long the slowest stage takes for a micro-batch."""
        return max(stage.cycles for stage in self.stages) / self.clock_hz


@dataclass(frozen=True)
class StageCosts:
    """What a stage of some units takes.

    Attributes:
        recomputes: whether backward runs the forward of all stages but the last again.
    """

    units: Sequence[Unit]
    num_stages: int
    tiles: Tiles
    is_training: bool
    recomputes: bool

    def cycles(self, first: int, last: int, stage: int) -> float:
        """Returns how long the units from `first` to `last` take as a stage."""
        units = self.units[first : last + 1]
        forward = sum(unit.forward_cycles for unit in units)
        total = forward + sum(unit.backward_cycles + unit.host_cycles for unit in units)
        is_last = stage == self.num_stages - 1
        if self.recomputes and not is_last:
            total += forward
        chip, numbers = self.tiles.chip, self.tiles.numbers
        if stage:
            total += copy_cycles(self._given(first), stage - 1, stage, chip, numbers)
        if self.is_training and not is_last:
            total += copy_cycles(units[-1].sent_bytes, stage + 1, stage, chip, numbers)
        return total

    def tile_bytes(self, first: int, last: int, stage: int) -> int:
        """Returns what the fullest tile holds while the units run as a stage."""
        units = self.units[first : last + 1]
        held = sum(unit.held_bytes for unit in units)
        live = sum(unit.activation_bytes for unit in units)
        if self.is_training:
            slots = stash_slots(stage, self.num_stages) - 1
            held += slots * (self._given(first) if self.recomputes else live)
        else:
            live = max(unit.activation_bytes for unit in units)
        return fullest_bytes((held + live) / self.tiles.count + _PROGRAM_BYTES)

    def _given(self, first: int) -> int:
        return self.units[first - 1].sent_bytes if first else 0


def best_split(costs: StageCosts, *, is_of_blocks: bool) -> Split:
    """Returns the cut whose slowest stage is the fastest of all that fit, or of all if none does.

    Raises:
        ValueError: there are fewer units than stages.
    """
    if len(costs.units) < costs.num_stages:
        raise ValueError(
            f"{len(costs.units)} units cannot be cut into {costs.num_stages} stages: name more "
            "blocks, or use fewer IPUs."
        )
    limit = costs.tiles.chip.tile_bytes
    ends, fits = _cut(costs, lambda *stage: costs.tile_bytes(*stage) <= limit), True
    if ends is None:
        ends, fits = _cut(costs, lambda *stage: True), False
    assert ends is not None, "without a limit every cut is allowed"
    firsts = [0, *(end + 1 for end in ends[:-1])]
    stages = tuple(
        StageSplit(
            stage,
            tuple(unit.name for unit in costs.units[first : last + 1]),
            costs.cycles(first, last, stage),
            costs.tile_bytes(first, last, stage),
        )
        for stage, (first, last) in enumerate(zip(firsts, ends, strict=True))
    )
    return Split(stages, fits, is_of_blocks, costs.tiles.chip.clock_hz)


def _cut(costs: StageCosts, is_allowed: Callable[[int, int, int], bool]) -> tuple[int, ...] | None:
    """Returns the last unit of each stage, `None` if nothing is allowed."""
    count = len(costs.units)
    # For the stages so far: the slowest of them, and where they end, by their last unit.
    best: dict[int, tuple[float, tuple[int, ...]]] = {-1: (0.0, ())}
    for stage in range(costs.num_stages):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        behind = costs.num_stages - 1 - stage  # Units that the stages behind need.
        for before, (slowest, ends) in best.items():
            lasts = range(before + 1, count - behind) if behind else (count - 1,)
            for last in lasts:
                if not is_allowed(before + 1, last, stage):
                    continue
                candidate = max(slowest, costs.cycles(before + 1, last, stage)), (*ends, last)
                found[last] = min(found.get(last, candidate), candidate)
        best = found
    return best[count - 1][1] if count - 1 in best else None
