"""What a step loses to each cause: the share of it that would be saved at most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from poptorch_emu.machine.time_numbers import NUMBERS
from poptorch_emu.plan.time.time_plan import ActionTime, SpreadWeight, StageTime, TimePlan
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
        ipu: the user's number of the IPU that is concerned.
        load: of that IPU, against the mean of all.
        weight: that several IPUs read.
    """

    cause: Cause
    share: float
    ipu: int | None = None
    load: float | None = None
    weight: SpreadWeight | None = None


def losses(plan: TimePlan) -> tuple[Loss, ...]:
    """Returns what each cause takes of a step, the largest first; weights on several IPUs lead.

    Of a pipeline the slowest IPU counts, for which all others wait.
    """
    if not plan.step_seconds:
        return ()
    found = sorted(_Losses(plan).all(), key=lambda loss: -loss.share)
    return tuple(sorted(found, key=lambda loss: loss.cause is not Cause.SPREAD_WEIGHT))


class _Losses:
    def __init__(self, plan: TimePlan) -> None:
        self._plan = plan
        self._window: Window = window_of(plan.grid)
        self._work = _work_by_ipu(plan.stages)
        self._slowest = max(self._work, key=lambda ipu: self._work[ipu])
        update = max((update.cycles for update in plan.updates), default=0.0)
        micro_batches = plan.window_seconds - update / plan.clock_hz
        # The share of a step in which micro-batches run.
        self._running = plan.num_windows * micro_batches / plan.step_seconds

    def all(self) -> Iterator[Loss]:
        plan, ipu = self._plan, self._slowest
        output = self._share("output_cycles")
        yield from self._of_balance()
        yield Loss(Cause.HOST_INPUT, self._share("host_cycles") - output, ipu)
        yield Loss(Cause.HOST_OUTPUT, output, ipu)
        yield Loss(Cause.CALLS, self._of_calls())
        remote = self._share("remote_cycles") + self._of_update("remote_cycles")
        yield Loss(Cause.STREAMING, remote, ipu)
        yield Loss(Cause.UPDATE, self._of_update("optimizer_cycles"))
        reduced = self._share("reduce_cycles") + self._of_update("reduce_cycles")
        yield Loss(Cause.ALL_REDUCE, reduced)
        yield Loss(Cause.RECOMPUTATION, self._share("recompute_cycles"), ipu)
        small = self._share("sync_cycles") + self._share("exchange_cycles")
        yield Loss(Cause.SMALL_MICRO_BATCH, small, ipu)
        # What products lose to little memory is in all parts of their time.
        operations = small + self._share("compute_cycles")
        yield Loss(Cause.SMALL_PROPORTION, operations, ipu)
        for weight in plan.spread_weights:
            work = self._work[self._slowest]
            yield Loss(
                Cause.SPREAD_WEIGHT, self._running * weight.cycles / work, ipu, weight=weight
            )

    def _of_balance(self) -> Iterator[Loss]:
        """Yields what comes of several IPUs: one is slow, they take turns, pipelines fill."""
        if len(self._work) < 2:
            return
        mean = sum(self._work.values()) / len(self._work)
        load = self._work[self._slowest] / mean
        if not self._window.is_pipelined:
            yield Loss(Cause.NO_OVERLAP, self._running * (1 - 1 / len(self._work)))
            return
        yield Loss(Cause.SLOW_STAGE, self._running * (1 - 1 / load), self._slowest, load)
        ramp = self._window.ramp_share(lambda port: self._plan.stages[port[1]].of(port[0]).cycles)
        if self._window.table is not None:  # In which waiting for a slow stage is no ramp.
            ramp = max(0.0, ramp - (1 - 1 / load))
        yield Loss(Cause.RAMP, self._running * ramp)

    def _share(self, part: str) -> float:
        """Returns the share of a step that a part of the actions of the slowest IPU takes.

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
        return self._running * taken / total if total else 0.0

    def _of_update(self, part: str) -> float:
        plan = self._plan
        cycles = max((getattr(update, part) for update in plan.updates), default=0.0)
        return float(plan.num_windows * cycles / plan.clock_hz / plan.step_seconds)

    def _of_calls(self) -> float:
        """Returns the share of what each call takes on the host, whatever it does."""
        return min(1.0, NUMBERS.call_seconds / self._plan.step_seconds)


def _work_by_ipu(stages: tuple[StageTime, ...]) -> dict[int, float]:
    work: dict[int, float] = {}
    for stage in stages:
        work[stage.ipu] = work.get(stage.ipu, 0.0) + stage.cycles
    return work
