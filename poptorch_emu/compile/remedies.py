"""Changes that reduce the causes of lost time; each is planned as a model of its own.

A remedy is a changed configuration. Its gain comes from the plan with the change, not from a
formula. A change helps against a cause only as far as it shortens the time of this cause.
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

# The smallest size of a change is chosen that saves this fraction of the largest saving.
_ENOUGH = 0.7
_FACTORS = (2, 4, 8)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Remedy:
    """A change, and the plan of the model with it.

    Attributes:
        loss: cause that the change reduces; None for a change that a real system requires.
        settings: settings of the planner; empty if no change helps.
        planned: plan of the model with these settings.
        gain: additional rows per second, as a fraction of those without the change. It is negative
            if a required change makes the model slower.
        score: share of a step that is saved, at most by what the cause takes less.
        update_factor: rows of an update with the change, divided by those without it.
        weight: weight that several IPUs read, which a real system rejects.
        obstacle: sentence that says why no change can be planned; "" if changes save too little.
    """

    loss: Loss | None
    settings: Settings
    planned: Planned | None
    gain: float = 0.0
    score: float = 0.0
    update_factor: float = 1.0
    weight: SpreadWeight | None = None
    obstacle: str = ""


def remedies(planner: Planner) -> tuple[Remedy, ...]:
    """Returns the worthwhile changes, after those that a real system requires.

    They are in the order of their causes, so that the first one concerns the bottleneck, also if no
    change helps against it. A change must fit in memory. If the unchanged model does not fit, a
    change must not need more memory.
    """
    now = planner.plan()
    if not now.time.step_seconds or now.time.throughput is None:
        return ()
    search = _Search(planner, now)
    needed = [search.of_weight(weight) for weight in now.time.spread_weights]
    found: list[Remedy] = []
    for number, loss in enumerate(losses(now.time)):
        best = max((remedy.score for remedy in found), default=0.0)
        # Larger micro-batches need another trace, so they are planned for the largest cause only.
        remedy = search.remedy(loss, may_trace=loss.share >= best and now.tiles.fits)
        if remedy is not None and remedy.score >= LEAST_SHARE:
            found.append(remedy)
        elif number == 0 and loss.cause is Cause.HOST_DATA:
            found.append(Remedy(loss, {}, None, score=loss.share))  # The user can mend it.
        elif number == 0:
            found.append(Remedy(loss, {}, None, obstacle=search.obstacle(loss)))
    return tuple(_without_repetition([*needed, *found]))


def _without_repetition(found: Iterable[Remedy]) -> Iterator[Remedy]:
    """Yields the remedies without repeated settings."""
    seen: list[Settings] = []
    for remedy in found:
        if remedy.planned is None or remedy.settings not in seen:
            seen.append(remedy.settings)
            yield remedy


class _Search:
    def __init__(self, planner: Planner, now: Planned) -> None:
        self._planner, self._now = planner, now

    def remedy(self, loss: Loss, *, may_trace: bool) -> Remedy | None:
        """Returns the smallest change that saves almost as much as the best; None if none helps."""
        changes = self._changes(loss)
        changes = [change for change in changes if may_trace or "micro_batch" not in change]
        tried = [
            pair
            for pair in self._tried(changes)
            if self._may_run(pair[1]) and not self._is_about_now(pair[1])
        ]
        helped = [self._helped(planned, loss) for _, planned in tried]
        for (settings, planned), score in zip(tried, helped, strict=True):
            if score > 0 and score >= _ENOUGH * max(helped):
                return self._made(settings, planned, loss, score)
        return None

    def obstacle(self, loss: Loss) -> str:
        """Returns why no change against a cause can be planned; "" if one can, or there is none."""
        faults = []
        for settings in self._changes(loss):
            try:
                self._planner.plan(settings)
                return ""
            except Error as error:
                faults.append(str(error.message))
        return faults[0] if faults else ""

    def _changes(self, loss: Loss) -> list[Settings]:
        return _CHANGES[loss.cause](self._planner) if loss.cause in _CHANGES else []

    def of_weight(self, weight: SpreadWeight) -> Remedy:
        """Returns the split that puts all uses of a weight on one IPU, regardless of its cost."""
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
                continue  # The settings conflict.

    def _may_run(self, planned: Planned) -> bool:
        tiles = planned.tiles
        return tiles.fits or tiles.most_bytes <= self._now.tiles.most_bytes

    def _helped(self, planned: Planned, loss: Loss) -> float:
        """Returns the share of a step that is saved, at most by what the cause takes less."""
        saved = self._saved(planned)
        then = sum(each.share for each in losses(planned.time) if each.cause is loss.cause)
        return min(saved, loss.share - (1 - saved) * then)

    def _is_about_now(self, planned: Planned) -> bool:
        """Whether a change has a gain, or a loss, that is within the interval of the model."""
        now, then = self._now.time.speed, planned.time.speed
        return now is None or then is None or now.is_about(then)

    def _saved(self, planned: Planned) -> float:
        """Returns the share of the time per row that is saved; below 0 if the model is slower."""
        now, then = self._now.time.throughput, planned.time.throughput
        return 1 - now / then if now and then else 0.0


def _longer_windows(planner: Planner) -> list[Settings]:
    config = planner.inventory.config
    name = "accumulation" if config.is_training else "device_iterations"
    return [{name: config.num_micro_batches * factor} for factor in _FACTORS]


def _cut_anew(planner: Planner) -> list[Settings]:
    return [planner.cut_settings(len(planner.inventory.placed.ipu_ids))]


def _pipelined(planner: Planner) -> list[Settings]:
    """Returns pipelines of the same stages, and of new stages with enough micro-batches."""
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
    """Returns other splits. The grouped order puts a forward and a backward in each cycle."""
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


# Changes that may reduce each cause, smaller changes first.
_CHANGES: Mapping[Cause, Callable[[Planner], list[Settings]]] = {
    Cause.IMBALANCE: _rebalanced,
    Cause.LINK: _cut_anew,
    Cause.TURNS: _pipelined,
    Cause.RAMP: _longer_windows,
    Cause.UPDATE: _smaller_updates,
    Cause.ALL_REDUCE: _longer_windows,
    Cause.CALLS: _more_iterations,
    Cause.HOST_DATA: _longer_windows,
    Cause.HOST_INPUT: _hidden_input,
    Cause.HOST_OUTPUT: _fewer_outputs,
    Cause.STREAMING: _on_chip,
    Cause.RECOMPUTATION: lambda planner: [{"recomputation": Recomputation.NONE.name.lower()}],
    Cause.LOW_PROPORTION: _more_memory_for_products,
    Cause.SMALL_MICRO_BATCH: _larger_micro_batches,
}
