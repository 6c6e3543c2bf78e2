"""Compares the best split with all possible splits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.ipu import MK2
from poptorch_emu.plan.time.split import StageCosts, Tie, Unit, best_split

TILES = Tiles(MK2, MK2.num_tiles)
MIB = 1 << 20


def units_of(numbers) -> list[Unit]:
    return [
        Unit(f"unit{i}", f, b, held * MIB, 50 * MIB, sent * MIB, has_checkpoint=any(marks))
        for i, (f, b, held, sent, *marks) in enumerate(numbers)
    ]


def all_splits(costs: StageCosts):
    """Yields the slowest stage and the fullest tile of every possible split."""
    count = len(costs.units)
    for cuts in itertools.combinations(range(1, count), costs.num_stages - 1):
        ends = [0, *cuts, count]
        stages = [
            (first, last - 1, stage) for stage, (first, last) in enumerate(itertools.pairwise(ends))
        ]
        slowest = max(costs.cycles(*stage) for stage in stages)
        yield slowest, max(map(costs.tile_bytes, stages))


def best_of(tried, found) -> float:
    """Returns the fastest split that fits; if none, the fastest with no more bytes than `found`.

    In the second case, no split may need much less memory than `found`.
    """
    limit = MK2.tile_bytes
    assert found.fits == any(fullest <= limit for _, fullest in tried)
    if not found.fits:
        limit = max(stage.tile_bytes for stage in found.stages)
        assert limit <= 1.01 * min(fullest for _, fullest in tried) + 1
    return min(slowest for slowest, fullest in tried if fullest <= limit)


numbers = st.tuples(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 400), st.integers(0, 20),
    st.booleans(),
)  # fmt: skip


@given(st.lists(numbers, min_size=1, max_size=8), st.integers(1, 8), st.booleans(), st.booleans())
def test_split_then_is_the_best_of_all(units, num_stages, is_training, recomputes) -> None:
    num_stages = min(num_stages, len(units))
    costs = StageCosts(units_of(units), num_stages, TILES, is_training, recomputes)
    found = best_split(costs, is_of_blocks=True)
    best = best_of(list(all_splits(costs)), found)
    assert max(stage.cycles for stage in found.stages) == best
    named = [name for stage in found.stages for name in stage.units]
    assert named == [f"unit{i}" for i in range(len(units))]


def test_last_stage_when_it_has_checkpoints_then_recomputes_what_is_before_the_last() -> None:
    plain, marked = (1000, 2000, 0, 0), (1000, 2000, 0, 0, True)
    layers = [plain, plain, marked, marked, plain]
    costs = StageCosts(units_of(layers), 2, TILES, is_training=True, recomputes=True)
    copied = StageCosts(units_of([plain] * 5), 2, TILES, True, True)
    for first, recomputed in ((1, 3), (2, 2), (3, 1), (4, 0)):
        extra = costs.cycles(first, 4, 1) - copied.cycles(first, 4, 1)
        assert extra == 1000 * recomputed
        assert costs.cycles(0, first - 1, 0) == copied.cycles(0, first - 1, 0)


def test_split_when_there_are_fewer_units_than_stages_then_raises() -> None:
    costs = StageCosts(units_of([(1, 1, 1, 1)]), 2, TILES, True, True)
    with pytest.raises(ValueError, match="1 units cannot be cut into 2 stages"):
        best_split(costs, is_of_blocks=True)


def all_tied(costs: StageCosts, tied: set[int]):
    """Yields window and fullest tile of every split that keeps the tied units on one IPU.

    A circle has one more stage, on the first IPU, even if one of its stages has all tied units.
    """
    num_ipus, count = costs.num_stages, len(costs.units)
    for num_stages in range(num_ipus, min(num_ipus + (2 if num_ipus > 1 else 1), count + 1)):
        form = replace(costs, num_stages=num_stages, is_circle=num_stages > num_ipus)
        ramp = (2 if costs.is_training else 1) * (num_stages - 1)
        for cuts in itertools.combinations(range(1, count), num_stages - 1):
            ends = [0, *cuts, count]
            units_of_ipu: dict[int, list[tuple[int, int, int]]] = {}
            for stage, (first, last) in enumerate(itertools.pairwise(ends)):
                units_of_ipu.setdefault(stage % num_ipus, []).append((first, last - 1, stage))
            homes = {
                ipu
                for ipu, pieces in units_of_ipu.items()
                for first, last, _ in pieces
                if tied & set(range(first, last + 1))
            }
            if len(homes) > 1:
                continue
            slowest = max(
                sum(form.cycles(*piece) for piece in pieces) for pieces in units_of_ipu.values()
            )
            fullest = max(form.tile_bytes(*pieces) for pieces in units_of_ipu.values())
            yield (costs.num_micro_batches + ramp) * slowest, fullest


@given(
    st.lists(numbers, min_size=2, max_size=7),
    st.integers(1, 5),
    st.sets(st.integers(0, 6), min_size=2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 4, 64]),
)
def test_split_when_weights_are_tied_then_is_the_best_that_keeps_them_on_an_ipu(
    units, num_ipus, tied, is_training, recomputes, accumulation
) -> None:
    num_ipus = min(num_ipus, len(units))
    tied = {unit % len(units) for unit in tied}
    costs = StageCosts(
        units_of(units),
        num_ipus,
        TILES,
        is_training,
        recomputes,
        (Tie("weight", tuple(sorted(tied))),),
        accumulation,
    )
    tried = list(all_tied(costs, tied))
    if not tried:
        with pytest.raises(ValueError, match="keeps the weight 'weight' on one of them"):
            best_split(costs, is_of_blocks=True)
        return
    found = best_split(costs, is_of_blocks=True)
    ramp = (2 if is_training else 1) * (len(found.stages) - 1)
    of_ipu = [[s.cycles for s in found.stages if s.ipu == ipu] for ipu in range(len(found.stages))]
    window = (accumulation + ramp) * max(map(sum, of_ipu))
    assert window == pytest.approx(best_of(tried, found))
    homes = {
        stage.ipu for stage in found.stages if {f"unit{unit}" for unit in tied} & set(stage.units)
    }
    assert len(homes) == 1
