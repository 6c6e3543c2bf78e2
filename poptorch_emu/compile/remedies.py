"""Changes against the causes that a step loses time to; each is planned as a model of its own.

A remedy is a changed configuration. Its gain is that of the plan with the change; no formula of its
own estimates it. A cause counts for as much as it takes of a step, and for no more than its remedy
saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.config import PipelineOrder, Recomputation, StrategyKind
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import Error
from poptorch_emu.machine.costs.product import DEFAULT_PROPORTION
from poptorch_emu.plan.time.causes import LEAST_SHARE, Cause, Loss, losses
from poptorch_emu.plan.time.time_plan import SpreadWeight

# Of several sizes of one change the smallest is chosen that saves so much of what the best saves.
_ENOUGH = 0.7
_FACTORS = (2, 4, 8)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Remedy:
    """A change, and the plan with it.

    Attributes:
        loss: the cause that it is against; `None` where a real system refuses a weight.
        settings: of the planner; empty if nothing was found.
        planned: with these settings.
        gain: the additional rows a second, as a share of those without the change. It is negative
            if the model becomes slower, which only a change that is needed may do.
        score: the share of a step that is saved, at most that of the cause.
        update_factor: the rows of an update with the change, divided by those without it.
        weight: the weight that several IPUs read, which a real system refuses.
    """

    loss: Loss | None
    settings: Settings
    planned: Planned | None
    gain: float = 0.0
    score: float = 0.0
    update_factor: float = 1.0
    weight: SpreadWeight | None = None


def remedies(planner: Planner) -> tuple[Remedy, ...]:
    """Returns the changes that are worth it, best first, after those that a real system needs.

    A change that would not fit is no remedy, unless the model does not fit as it is and needs no
    more memory then.
    """
    now = planner.plan()
    if not now.time.step_seconds or now.time.throughput is None:
        return ()
    search = _Search(planner, now)
    needed = [search.of_weight(weight) for weight in now.time.spread_weights]
    found: list[Remedy] = []
    for loss in losses(now.time):
        best = max((remedy.score for remedy in found), default=0.0)
        # Larger micro-batches need another trace, which is worth it only for the best of all.
        remedy = search.remedy(loss, may_trace=loss.share >= best and now.tiles.fits)
        if remedy is not None and remedy.score >= LEAST_SHARE:
            found.append(remedy)
    found.sort(key=lambda remedy: -remedy.score)
    return (*needed, *_without_repetition(found))


def _without_repetition(found: Iterable[Remedy]) -> Iterator[Remedy]:
    """Yields the remedies of which each change is new."""
    seen: list[Settings] = []
    for remedy in found:
        if remedy.settings not in seen:
            seen.append(remedy.settings)
            yield remedy


class _Search:
    def __init__(self, planner: Planner, now: Planned) -> None:
        self._planner, self._now = planner, now

    def remedy(self, loss: Loss, *, may_trace: bool) -> Remedy | None:
        """Returns the smallest change that saves about as much as any; `None` if nothing helps."""
        changes = _CHANGES[loss.cause](self._planner) if loss.cause in _CHANGES else []
        changes = [change for change in changes if may_trace or "micro_batch" not in change]
        tried = [pair for pair in self._tried(changes) if self._may_run(pair[1])]
        most = max((self._saved(planned) for _, planned in tried), default=0.0)
        for settings, planned in tried:
            saved = self._saved(planned)
            if most > 0 and saved >= _ENOUGH * most:
                return self._made(settings, planned, loss, min(saved, loss.share))
        return None

    def of_weight(self, weight: SpreadWeight) -> Remedy:
        """Returns the split that brings all uses of a weight to one IPU, whatever it costs."""
        for settings, planned in self._tried(_cut_anew(self._planner)):
            if not planned.time.spread_weights:
                return self._made(settings, planned, None, 1.0, weight)
        return Remedy(None, {}, None, weight=weight)

    def _made(
        self,
        settings: Settings,
        planned: Planned,
        loss: Loss | None,
        score: float,
        weight: SpreadWeight | None = None,
    ) -> Remedy:
        factor = planned.time.rows_per_update / self._now.time.rows_per_update
        gain = 1 / (1 - self._saved(planned)) - 1
        return Remedy(loss, settings, planned, gain, score, factor, weight)

    def _tried(self, changes: Iterable[Settings]) -> Iterator[tuple[Settings, Planned]]:
        for settings in changes:
            try:
                yield settings, self._planner.plan(settings)
            except Error:
                continue  # It does not go together with the other settings.

    def _may_run(self, planned: Planned) -> bool:
        tiles = planned.tiles
        return tiles.fits or tiles.most_bytes <= self._now.tiles.most_bytes

    def _saved(self, planned: Planned) -> float:
        """Returns the share of the time of a row that is saved; below 0 if it takes longer."""
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


def _rebalanced(planner: Planner) -> list[Settings]:
    """Returns other splits; cycles of the grouped pipeline hold a forward and a backward each."""
    order = planner.inventory.config.strategy.order
    same: list[Settings] = [{"schedule": "grouped"}] if order is PipelineOrder.INTERLEAVED else []
    return [*_cut_anew(planner), *same]


def _hidden_input(planner: Planner) -> list[Settings]:
    is_alone = len(planner.inventory.placed.ipu_ids) == 1
    hidden: list[Settings] = [{"overlap": "inputs"}] if is_alone else _cut_anew(planner)
    return [*hidden, *_larger_micro_batches(planner)]


def _fewer_outputs(planner: Planner) -> list[Settings]:
    config = planner.inventory.config
    if config.is_training and config.output_mode is OutputMode.All:
        return [{"output_mode": OutputMode.Final.name}]
    return [{"overlap": "results"}, *_larger_micro_batches(planner)]


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
    Cause.IMBALANCE: _rebalanced,
    Cause.LINK: _cut_anew,
    Cause.TURNS: _pipelined,
    Cause.RAMP: _longer_windows,
    Cause.UPDATE: _smaller_updates,
    Cause.ALL_REDUCE: _longer_windows,
    Cause.CALLS: _more_iterations,
    Cause.HOST_INPUT: _hidden_input,
    Cause.HOST_OUTPUT: _fewer_outputs,
    Cause.STREAMING: _on_chip,
    Cause.RECOMPUTATION: lambda planner: [{"recomputation": Recomputation.NONE.name.lower()}],
    Cause.LOW_PROPORTION: _more_memory_for_products,
    Cause.SMALL_MICRO_BATCH: _larger_micro_batches,
}
