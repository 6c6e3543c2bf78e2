"""What to change against what limits a step: each remedy is tried by the model of the machine.

A cause counts for as much as it takes of a step, and for no more than its remedy saves. So the
first one is what is worth most to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.config import Recomputation, StrategyKind
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import Error
from poptorch_emu.machine.costs.product import DEFAULT_PROPORTION
from poptorch_emu.plan.time.losses import Cause, Loss, losses

# A cause that is worth less of a step is not worth a sentence.
_LEAST_SHARE = 0.05
# Of several sizes of one change the smallest is taken that saves so much of what the best saves.
_ENOUGH = 0.7
_FACTORS = (2, 4, 8)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Remedy:
    """What to change, and what it gives.

    Attributes:
        loss: that it is against.
        settings: of the planner; empty if nothing helps that fits.
        planned: with these settings.
        gain: by how much more rows a second there are, as a share.
        score: the share of a step that is saved, at most what there is to save of the loss.
    """

    loss: Loss
    settings: Settings
    planned: Planned | None
    gain: float
    score: float

    @property
    def is_needed(self) -> bool:
        """Whether a real system refuses the model as it is."""
        return self.loss.cause is Cause.SPREAD_WEIGHT


def remedies(planner: Planner) -> tuple[Remedy, ...]:
    """Returns what is worth changing, best first; a weight on several IPUs leads.

    What would not fit is no remedy, unless the model does not fit as it is and needs no more then.
    """
    now = planner.plan({})
    if now.time.throughput is None:
        return ()
    search, found = _Search(planner, now), list[Remedy]()
    in_order = sorted(losses(now.time), key=lambda loss: loss.cause is Cause.SMALL_MICRO_BATCH)
    for loss in in_order:
        is_wrong = loss.cause is Cause.SPREAD_WEIGHT
        best = max((remedy.score for remedy in found), default=0.0)
        # To trace the model again for larger micro-batches is worth it for what leads, and fits.
        is_larger = loss.cause is Cause.SMALL_MICRO_BATCH
        is_hopeless = is_larger and (loss.most_saved < best or not now.tiles.fits)
        if loss.most_saved < _LEAST_SHARE and not is_wrong or is_hopeless:
            continue
        remedy = search.remedy(loss)
        if remedy.score >= _LEAST_SHARE or is_wrong:
            found.append(remedy)
    found.sort(key=lambda remedy: -remedy.score)
    found = _without_repetition(found)
    found.sort(key=lambda remedy: not remedy.is_needed)
    return tuple(found)


def _without_repetition(found: Iterable[Remedy]) -> list[Remedy]:
    """Returns the remedies of which each change is new."""
    seen: list[Settings] = []
    kept = []
    for remedy in found:
        if remedy.settings not in seen or not remedy.settings:
            seen.append(remedy.settings)
            kept.append(remedy)
    return kept


class _Search:
    def __init__(self, planner: Planner, now: Planned) -> None:
        self._planner, self._now = planner, now

    def remedy(self, loss: Loss) -> Remedy:
        """Returns the smallest change that saves about as much as any."""
        tried = list(self._tried(_CHANGES[loss.cause](self._planner)))
        saved = [(self._saved(planned), settings, planned) for settings, planned in tried]
        most = max((share for share, _, _ in saved), default=0.0)
        for share, settings, planned in saved:
            if most > 0 and share >= _ENOUGH * most:
                score = min(share, loss.most_saved)
                return Remedy(loss, settings, planned, 1 / (1 - share) - 1, score)
        return Remedy(loss, {}, None, 0.0, 0.0)

    def _tried(self, changes: Iterable[Settings]) -> Iterator[tuple[Settings, Planned]]:
        for settings in changes:
            try:
                planned = self._planner.plan(settings)
            except Error:
                continue  # It does not go together with what is set.
            tiles = planned.tiles
            if tiles.fits or tiles.most_bytes <= self._now.tiles.most_bytes:
                yield settings, planned

    def _saved(self, planned: Planned) -> float:
        """Returns the share of the time of a row that is saved."""
        now, then = self._now.time.throughput, planned.time.throughput
        return 1 - now / then if now and then else 0.0


def _longer_windows(planner: Planner) -> list[Settings]:
    config = planner.inventory.config
    name = "accumulation" if config.is_training else "device_iterations"
    return [{name: config.num_micro_batches * factor} for factor in _FACTORS]


def _cut_anew(planner: Planner) -> list[Settings]:
    return [planner.cut_settings(len(planner.inventory.placed.ipu_ids))]


def _pipelined(planner: Planner) -> list[Settings]:
    """Returns a pipeline of the same stages, or of others with enough micro-batches."""
    (cut,), windows = _cut_anew(planner), _longer_windows(planner)
    is_pipeline = planner.inventory.config.strategy.kind is StrategyKind.PIPELINED
    same: list[Settings] = [{"schedule": "grouped"}] if is_pipeline else []
    return [*same, cut, *({**cut, **window} for window in windows)]


def _smaller_updates(planner: Planner) -> list[Settings]:
    is_replicated = planner.inventory.config.replication_factor > 1
    sharded: list[Settings] = [{"sharding": True}] if is_replicated else []
    return [*sharded, *_longer_windows(planner)]


def _more_iterations(planner: Planner) -> list[Settings]:
    iterations = planner.inventory.config.device_iterations
    return [{"device_iterations": iterations * factor} for factor in (*_FACTORS, 16)]


def _hidden_input(planner: Planner) -> list[Settings]:
    is_alone = len(planner.inventory.placed.ipu_ids) == 1
    return [{"overlap": "inputs"}] if is_alone else _cut_anew(planner)


def _fewer_outputs(planner: Planner) -> list[Settings]:
    config = planner.inventory.config
    if config.is_training and config.output_mode is OutputMode.All:
        return [{"output_mode": OutputMode.Final.name}]
    return [{"overlap": "results"}]


def _on_chip(planner: Planner) -> list[Settings]:
    is_training = planner.inventory.config.is_training
    return [{"offload": "nothing"}, *(_longer_windows(planner) if is_training else ())]


def _more_memory_for_products(planner: Planner) -> list[Settings]:
    set_ones = [share for _, share in planner.inventory.config.machine.available_memory_proportion]
    is_low = min(set_ones, default=DEFAULT_PROPORTION) < DEFAULT_PROPORTION
    return [{"proportion": DEFAULT_PROPORTION}] if is_low else []


def _larger_micro_batches(planner: Planner) -> list[Settings]:
    if not planner.inventory.rows or planner.capture is None:
        return []
    return [{"micro_batch": planner.inventory.rows * factor} for factor in _FACTORS[:2]]


# What may help against each cause, smaller changes first.
_CHANGES: Mapping[Cause, Callable[[Planner], list[Settings]]] = {
    Cause.SPREAD_WEIGHT: _cut_anew,
    Cause.SLOW_STAGE: _cut_anew,
    Cause.NO_OVERLAP: _pipelined,
    Cause.RAMP: _longer_windows,
    Cause.UPDATE: _smaller_updates,
    Cause.ALL_REDUCE: _longer_windows,
    Cause.CALLS: _more_iterations,
    Cause.HOST_INPUT: _hidden_input,
    Cause.HOST_OUTPUT: _fewer_outputs,
    Cause.STREAMING: _on_chip,
    Cause.RECOMPUTATION: lambda planner: [{"recomputation": Recomputation.NONE.name.lower()}],
    Cause.SMALL_PROPORTION: _more_memory_for_products,
    Cause.SMALL_MICRO_BATCH: _larger_micro_batches,
}
