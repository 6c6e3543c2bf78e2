"""What a step loses to each cause: the share that it takes, and what would be saved at most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from poptorch_emu.machine.time_numbers import NUMBERS
from poptorch_emu.plan.time.time_plan import ActionTime, SpreadWeight, TimePlan, work_by_ipu
from poptorch_emu.plan.time.window import Window, window_of


class Cause(Enum):
    """Why a step takes longer than its work."""

    SPREAD_WEIGHT = "a weight on several IPUs"
    HOST_INPUT = "host input"
    HOST_OUTPUT = "host output"
    CALLS = "calls"
    STREAMING = "streaming memory"
    SLOW_STAGE = "one slow stage"
    NO_OVERLAP = "one IPU at a time"
    RAMP = "short windows"
    UPDATE = "update"
    ALL_REDUCE = "all-reduce"
    RECOMPUTATION = "recomputation"
    SMALL_PROPORTION = "memory proportion"
    SMALL_MICRO_BATCH = "small micro-batches"


@dataclass(frozen=True)
class Loss:
    """What one cause takes.

    Attributes:
        share: of the step.
        most_saved: the share that is saved without it, at most: where a pipeline's slowest IPU
            becomes faster, filling and emptying it does, too.
        ipu: the user's number of the IPU that is concerned.
        load: of that IPU, against the mean of all.
        weight: that several IPUs read.
    """

    cause: Cause
    share: float
    most_saved: float
    ipu: int | None = None
    load: float | None = None
    weight: SpreadWeight | None = None


def losses(plan: TimePlan) -> tuple[Loss, ...]:
    """Returns what each cause costs a step, the largest first; weights on several IPUs lead.

    Of a pipeline the slowest IPU counts, for which all others wait.
    """
    if not plan.step_seconds:
        return ()
    found = sorted(_Losses(plan).all(), key=lambda loss: -loss.most_saved)
    return tuple(sorted(found, key=lambda loss: loss.cause is not Cause.SPREAD_WEIGHT))


class _Losses:
    def __init__(self, plan: TimePlan) -> None:
        self._plan = plan
        self._window: Window = window_of(plan.grid)
        self._work = work_by_ipu(plan.stages)
        self._slowest = max(self._work, key=lambda ipu: self._work[ipu])
        update = max((update.cycles for update in plan.updates), default=0.0)
        micro_batches = plan.window_seconds - update / plan.clock_hz
        # The share of a step in which micro-batches run, and in which the slowest IPU runs them.
        self._running = self._busy = plan.num_windows * micro_batches / plan.step_seconds
        if self._window.is_pipelined:
            cycles = plan.num_windows * plan.grid.num_micro_batches * self._work[self._slowest]
            self._busy = cycles / plan.clock_hz / plan.step_seconds

    def all(self) -> Iterator[Loss]:
        yield from self._of_balance()
        output = self._share("output_cycles")
        yield self._loss(Cause.HOST_INPUT, self._share("host_cycles") - output)
        yield self._loss(Cause.HOST_OUTPUT, output)
        yield self._elsewhere(Cause.CALLS, self._of_calls())
        remote = self._share("remote_cycles")
        yield self._loss(Cause.STREAMING, remote, self._of_update("remote_cycles"))
        yield self._elsewhere(Cause.UPDATE, self._of_update("optimizer_cycles"))
        reduced = self._share("reduce_cycles")
        yield self._loss(Cause.ALL_REDUCE, reduced, self._of_update("reduce_cycles"))
        yield self._loss(Cause.RECOMPUTATION, self._share("recompute_cycles"))
        small = self._share("sync_cycles") + self._share("exchange_cycles")
        yield self._loss(Cause.SMALL_MICRO_BATCH, small)
        # What products lose to little memory is in all parts of their time.
        yield self._loss(Cause.SMALL_PROPORTION, small + self._share("compute_cycles"))
        for weight in self._plan.spread_weights:
            share = weight.cycles / self._work[self._slowest]
            yield replace(self._loss(Cause.SPREAD_WEIGHT, share), weight=weight)

    def _loss(self, cause: Cause, of_work: float, of_update: float = 0.0) -> Loss:
        """Returns a loss of so much of the slowest IPU's work, and of a step in updates."""
        share, most = (running * of_work + of_update for running in (self._busy, self._running))
        return Loss(cause, share, most, self._slowest)

    def _elsewhere(self, cause: Cause, share: float) -> Loss:
        """Returns what takes a share of a step beside the work of micro-batches."""
        return Loss(cause, share, share)

    def _of_balance(self) -> Iterator[Loss]:
        """Yields what comes of several IPUs: one is slow, they take turns, pipelines fill."""
        if len(self._work) < 2:
            return
        mean = sum(self._work.values()) / len(self._work)
        load = self._work[self._slowest] / mean
        if not self._window.is_pipelined:
            yield self._elsewhere(Cause.NO_OVERLAP, self._running * (1 - 1 / len(self._work)))
            return
        waiting = self._running * (1 - 1 / load)
        yield Loss(Cause.SLOW_STAGE, waiting, waiting, self._slowest, load)
        ramp = self._window.ramp_share(self._plan.cycles_of)
        if self._window.table is not None:  # In which waiting for a slow stage is no ramp.
            ramp = max(0.0, ramp - (1 - 1 / load))
        yield self._elsewhere(Cause.RAMP, self._running * ramp)

    def _share(self, part: str) -> float:
        """Returns the share of the work of the slowest IPU that a part of its actions takes.

        Where stages take turns, all IPUs count.
        """
        stages = [
            stage
            for stage in self._plan.stages
            if stage.ipu == self._slowest or not self._window.is_pipelined
        ]
        actions: list[ActionTime] = [action for stage in stages for action in stage.parts]
        taken = math.fsum(getattr(action, part) for action in actions)
        total = math.fsum(action.cycles for action in actions)
        return taken / total if total else 0.0

    def _of_update(self, part: str) -> float:
        """Returns the share of a step that a part of its updates takes.

        IPUs reduce at the same time. What follows they do in turn where one waits for another.
        """
        plan = self._plan
        taken = [getattr(update, part) for update in plan.updates]
        is_in_turn = any(update.wait_cycles for update in plan.updates) and part != "reduce_cycles"
        cycles = math.fsum(taken) if is_in_turn else max(taken, default=0.0)
        return float(plan.num_windows * cycles / plan.clock_hz / plan.step_seconds)

    def _of_calls(self) -> float:
        """Returns the share of what each call takes on the host, whatever it does."""
        return min(1.0, NUMBERS.call_seconds / self._plan.step_seconds)
