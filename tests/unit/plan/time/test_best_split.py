"""The best split against all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.ipu import MK2
from poptorch_emu.plan.time.split import StageCosts, Unit, best_split

TILES = Tiles(MK2, MK2.num_tiles)
MIB = 1 << 20


def units_of(numbers) -> list[Unit]:
    return [
        Unit(f"unit{i}", float(f), float(b), held * MIB, 50 * MIB, sent * MIB)
        for i, (f, b, held, sent) in enumerate(numbers)
    ]


def all_splits(costs: StageCosts):
    """Yields slowest stage and whether it fits, of every way to cut."""
    count = len(costs.units)
    for cuts in itertools.combinations(range(1, count), costs.num_stages - 1):
        ends = [0, *cuts, count]
        stages = [
            (first, last - 1, stage) for stage, (first, last) in enumerate(itertools.pairwise(ends))
        ]
        slowest = max(costs.cycles(*stage) for stage in stages)
        yield slowest, all(costs.tile_bytes(*stage) <= MK2.tile_bytes for stage in stages)


numbers = st.tuples(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 400), st.integers(0, 20)
)


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=8), st.integers(1, 8), st.booleans(), st.booleans())
def test_split_then_is_the_best_of_all(units, num_stages, is_training, recomputes) -> None:
    num_stages = min(num_stages, len(units))
    costs = StageCosts(units_of(units), num_stages, TILES, is_training, recomputes)
    found = best_split(costs, is_of_blocks=True)
    tried = list(all_splits(costs))
    fitting = [slowest for slowest, fits in tried if fits]
    assert found.fits == bool(fitting)
    best = min(fitting) if fitting else min(slowest for slowest, _ in tried)
    assert max(stage.cycles for stage in found.stages) == best
    named = [name for stage in found.stages for name in stage.units]
    assert named == [f"unit{i}" for i in range(len(units))]


def test_split_when_there_are_fewer_units_than_stages_then_raises() -> None:
    costs = StageCosts(units_of([(1, 1, 1, 1)]), 2, TILES, True, True)
    with pytest.raises(ValueError, match="1 units cannot be cut into 2 stages"):
        best_split(costs, is_of_blocks=True)
