"""The smallest set of changes with which a model fits, found by trying them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.compile.settings import joined
from poptorch_emu.errors import Error

# Of sets of so many changes so many are tried, those that promise to save most.
_MOST_TRIED = {2: 8, 3: 6, 4: 6, 5: 4}
# A set is tried if it promises to need no more than so many times what there is.
_MARGIN = 1.3
# A change that saves a smaller share is of no use.
LEAST_SAVED = 0.01
_PROPORTIONS = (0.2, 0.1)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Way:
    """One set of changes, and what it gives.

    Attributes:
        settings: of the planner.
        planned: with them.
    """

    settings: Settings
    planned: Planned

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """What the fullest tile of each IPU holds."""
        tiles = self.planned.tiles
        return tuple(map(tiles.largest_bytes, tiles.ipus))


@dataclass(frozen=True)
class Fitting:
    """What was found for a model that does not fit.

    Attributes:
        now: the model as it is.
        best: the fastest of the smallest sets of changes with which it fits, if any.
        nearest: what needs least of all that was tried.
        singles: what each change alone gives, where it saves something.
    """

    now: Planned
    best: Way | None
    nearest: Way
    singles: tuple[Way, ...]


def fitting(planner: Planner) -> Fitting:
    """Returns the smallest set of changes with which the model fits, and single ones.

    Where it fits as it is, those that need another cut or other micro-batches are not tried.
    """
    now = planner.plan()
    is_needed = not now.tiles.fits
    singles = _tried(planner, _settings(planner))
    if is_needed:
        singles += _until_it_fits(planner, _numbers_of_ipus(planner))
        singles += _until_it_fits(planner, _smaller_micro_batches(planner))
    useful = tuple(way for way in singles if _saved(now, way) >= LEAST_SAVED)
    tried = [Way({}, now), *singles]
    best = _fastest(singles) if is_needed else None
    for size, most in _MOST_TRIED.items():
        if is_needed and best is None:
            ways = _tried(planner, _sets_of(size, singles, tried[0], most))
            tried, best = [*tried, *ways], _fastest(ways)
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
    """Yields other splits, over as many IPUs and over more."""
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
    """Returns what was tried until something fitted: what follows is a larger change."""
    found: list[Way] = []
    for settings in choices:
        found += _tried(planner, [settings])
        if found and found[-1].planned.tiles.worst_verdict == "yes":
            break
    return found


def _tried(planner: Planner, choices: Iterable[Settings]) -> list[Way]:
    found = []
    for settings in choices:
        try:
            found.append(Way(settings, planner.plan(settings)))
        except Error:
            continue  # The settings do not go together, or not with the model.
    return found


def _sets_of(size: int, singles: Sequence[Way], now: Way, most: int) -> Iterator[Settings]:
    """Yields sets of changes that go together, those first that promise to need least.

    What does not help the fullest IPU may help another one, so that all changes count.
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
    """Returns what the fullest tile would hold if each change kept the share that it keeps alone.

    Where the model is cut anew, other changes are taken to keep the same share on each IPU.
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
    """Returns what fits as well with micro-batches as large as may be.

    Sets are tried by what they save, so that one that fits may save more than it must.
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
    """Returns the way with most rows a second and IPU that fits for sure, or else that may."""

    def speed(way: Way) -> float:
        return (way.planned.time.throughput or 0.0) / len(way.planned.time.ipus)

    for verdict in ("yes", "close"):
        found = [way for way in ways if way.planned.tiles.worst_verdict == verdict]
        if found:
            return max(found, key=speed)
    return None
