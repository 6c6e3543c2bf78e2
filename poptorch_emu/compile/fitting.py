"""Finds the smallest set of changes that makes a model fit, by planning many sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.compile.settings import joined
from poptorch_emu.errors import Error

# Number of sets that are planned, by the number of changes in a set; the most promising first.
_MOST_TRIED = {2: 8, 3: 6, 4: 6, 5: 4}
# A set is planned only if its promised memory is at most this multiple of a tile's memory.
_MARGIN = 1.3
# Least share of memory that a useful change saves.
LEAST_SAVED = 0.01
_PROPORTIONS = (0.2, 0.1)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Way:
    """One set of changes, and its plan.

    Attributes:
        settings: settings of the planner.
        planned: plan of the model with these settings.
    """

    settings: Settings
    planned: Planned

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Bytes of the fullest tile of each IPU."""
        tiles = self.planned.tiles
        return tuple(map(tiles.largest_bytes, tiles.ipus))


@dataclass(frozen=True)
class Fitting:
    """The result of the search for a model that does not fit.

    Attributes:
        now: plan of the unchanged model.
        best: the fastest of the smallest sets that make the model fit; None if none does.
        nearest: the set that needs the least memory of all.
        singles: sets of one change that save memory.
    """

    now: Planned
    best: Way | None
    nearest: Way
    singles: tuple[Way, ...]


def fitting(planner: Planner) -> Fitting:
    """Returns the smallest set of changes that makes the model fit, and useful single changes.

    Changes of the split or the micro-batches are planned only if the unchanged model is predicted
    not to fit.
    """
    now = planner.plan()
    is_needed = not now.tiles.is_within
    singles = _tried(planner, _settings(planner))
    if is_needed:
        singles += _until_it_fits(planner, _numbers_of_ipus(planner))
        singles += _until_it_fits(planner, _smaller_micro_batches(planner))
    useful = tuple(way for way in singles if _saved(now, way) >= LEAST_SAVED)
    tried = [Way({}, now), *singles]
    best = _fastest(singles) if is_needed else None
    for size, most in _MOST_TRIED.items():
        if is_needed and not (best is not None and best.planned.tiles.is_within):
            tried += _tried(planner, _sets_of(size, singles, tried[0], most))
            best = _fastest(tried[1:])
    if best is not None:
        best = _milder(planner, best)
    return Fitting(now, best, min(tried, key=lambda way: way.planned.tiles.most_bytes), useful)


def _settings(planner: Planner) -> Iterator[Settings]:
    config = planner.inventory.config
    if config.is_training:
        yield {"recomputation": "all"}
        yield from ({"offload": kinds} for kinds in ("optimizer", "activation"))
        if config.replication_factor > 1:
            yield {"sharding": True}
    yield from ({"proportion": share} for share in _PROPORTIONS)


def _numbers_of_ipus(planner: Planner) -> Iterator[Settings]:
    """Yields splits over the same number of IPUs, and over more."""
    count = len(planner.inventory.placed.ipu_ids)
    while count * planner.inventory.config.replication_factor <= planner.system.num_ipus:
        if count > 1:
            yield planner.cut_settings(count)
        count *= 2


def _smaller_micro_batches(planner: Planner) -> Iterator[Settings]:
    rows = planner.inventory.rows or 1
    while planner.capture is not None and rows > 1:
        rows //= 2
        yield {"micro_batch": rows}


def _until_it_fits(planner: Planner, choices: Iterator[Settings]) -> list[Way]:
    """Returns the ways up to the first that fits, because later choices are larger changes."""
    found: list[Way] = []
    for settings in choices:
        found += _tried(planner, [settings])
        if found and found[-1].planned.tiles.is_within:
            break
    return found


def _tried(planner: Planner, choices: Iterable[Settings]) -> list[Way]:
    found = []
    for settings in choices:
        try:
            found.append(Way(settings, planner.plan(settings)))
        except Error:
            continue  # The settings do not suit the model.
    return found


def _sets_of(size: int, singles: Sequence[Way], now: Way, most: int) -> Iterator[Settings]:
    """Yields sets of compatible changes, those first that promise to need the least memory.

    A change that does not help the fullest IPU may help another one, so all changes count.
    """
    helpful = [way for way in singles if way.levels != now.levels]
    limit = _MARGIN * now.planned.tiles.chip.tile_bytes
    found = []
    for ways in combinations(helpful, size):
        settings = joined([way.settings for way in ways])
        if settings is not None and (num_bytes := _promised(ways, now)) <= limit:
            found.append((num_bytes, settings))
    for _, settings in sorted(found, key=lambda one: one[0])[:most]:
        yield settings


def _promised(ways: Sequence[Way], now: Way) -> float:
    """Returns the bytes of the fullest tile if each change saved the share that it saves alone.

    If a change includes a new split, the shares of other changes are averaged over the IPUs.
    """
    cut = next((way for way in ways if way.planned.split is not None), None)
    levels: Sequence[float] = (cut or now).levels
    for way in ways:
        if way is cut:
            continue
        kept = [then / before for then, before in zip(way.levels, now.levels, strict=True)]
        if cut is not None:
            kept = [sum(way.levels) / sum(now.levels)] * len(levels)
        levels = [level * share for level, share in zip(levels, kept, strict=True)]
    return max(levels)


def _milder(planner: Planner, best: Way) -> Way:
    """Returns `best` with the largest micro-batches that fit equally well.

    The changes that save most memory are planned first, so `best` may save more than necessary.
    """
    rows = best.settings.get("micro_batch")
    while rows is not None and planner.inventory.rows and 2 * rows < planner.inventory.rows:
        rows *= 2
        larger = _tried(planner, [{**best.settings, "micro_batch": rows}])
        if not larger or larger[0].planned.tiles.worst_verdict != best.planned.tiles.worst_verdict:
            break
        best = _fastest([best, *larger]) or best
    return best


def _saved(now: Planned, way: Way) -> float:
    return 1 - way.planned.tiles.most_bytes / now.tiles.most_bytes


def _fastest(ways: Iterable[Way]) -> Way | None:
    """Returns the fastest way (rows per second and IPU) that is predicted to fit.

    Otherwise, the fastest one that may fit, because its interval begins below the limit.
    """

    def speed(way: Way) -> float:
        return (way.planned.time.throughput or 0.0) / len(way.planned.time.ipus)

    fitting = [way for way in ways if way.planned.tiles.fits]
    within = [way for way in fitting if way.planned.tiles.is_within]
    return max(within or fitting, key=speed, default=None)
