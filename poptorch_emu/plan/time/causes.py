"""Causes that make a step longer than its computation, from the parts of each IPU's time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from poptorch_emu.plan.time.step_parts import Group, Part
from poptorch_emu.plan.time.time_plan import IpuTime, TimePlan

# Least share of a step that makes a cause worth a sentence in a report.
LEAST_SHARE = 0.05
# Computation is no loss: it is the first cause only if it takes four times as long as any other.
_WEIGHT_OF_COMPUTE = 0.25


class Cause(Enum):
    """A cause, with the parts of a step that it explains; each part has one cause."""

    HOST_DATA = (Part.DATA,)
    HOST_INPUT = (Part.INPUT,)
    HOST_OUTPUT = (Part.OUTPUT,)
    CALLS = (Part.CALL,)
    STREAMING = (Part.STREAMING,)
    LINK = (Part.LINK,)
    IMBALANCE = (Part.IMBALANCE,)
    TURNS = (Part.TURNS,)
    RAMP = (Part.RAMP,)
    UPDATE = (Part.UPDATE, Part.UPDATE_TURNS)
    ALL_REDUCE = (Part.ALL_REDUCE,)
    RECOMPUTATION = (Part.RECOMPUTE,)
    LOW_PROPORTION = (Part.PROPORTION,)
    SMALL_MICRO_BATCH = (Part.SYNC, Part.EXCHANGE)
    COMPUTE = (Part.COMPUTE,)


@dataclass(frozen=True)
class Loss:
    """The share of a step that one cause takes.

    Attributes:
        cause: the cause of the lost time.
        share: share of the step of the busiest IPU, because the others wait for it. For imbalance
            and turns it is the mean over all IPUs. If IPUs take turns, the time of all of them
            counts.
        ipu: the user's number of the busiest IPU.
        load: the work of that IPU as a multiple of the mean of all IPUs.
        is_in_turn: whether the share also contains the time of IPUs that the busiest one waits for.
    """

    cause: Cause
    share: float
    ipu: int
    load: float
    is_in_turn: bool = False


def losses(plan: TimePlan) -> tuple[Loss, ...]:
    """Returns the causes that have a share of the step, the largest first.

    Computation comes before a cause that takes less than a quarter as long.
    """
    shares = _Shares(plan)
    found = [shares.of(cause) for cause in Cause]
    found.sort(
        key=lambda loss: -loss.share * (_WEIGHT_OF_COMPUTE if loss.cause is Cause.COMPUTE else 1.0)
    )
    return tuple(loss for loss in found if loss.share > 0)


class _Shares:
    def __init__(self, plan: TimePlan) -> None:
        self._plan = plan
        work = {ipu.ipu: _work(ipu) for ipu in plan.ipus}
        mean = math.fsum(work.values()) / len(work)
        self._busiest = max(plan.ipus, key=_work)
        self._load = work[self._busiest.ipu] / mean if mean else 1.0
        self._others = [ipu for ipu in plan.ipus if ipu is not self._busiest]

    def of(self, cause: Cause) -> Loss:
        """Returns the share of a step that one cause takes."""
        if cause in (Cause.IMBALANCE, Cause.TURNS):
            return Loss(cause, self._plan.shares[cause.value[0]], self._busiest.ipu, self._load)
        parts = [part for part in cause.value if part is not Part.UPDATE_TURNS]
        of_others = self._of_turns(parts) + self._of_update_turns(cause)
        seconds, step = self._busiest.of(*parts) + of_others, self._plan.step_seconds
        share = seconds / step if step else 0.0
        return Loss(cause, share, self._busiest.ipu, self._load, of_others > 0)

    def _of_turns(self, parts: list[Part]) -> float:
        """Returns the seconds that the busiest IPU waits while other IPUs spend time on `parts`."""
        if any(part.group is Group.WAIT or part in (Part.CALL, Part.DATA) for part in parts):
            return 0.0
        total = math.fsum(map(_work, self._others))
        share = math.fsum(ipu.of(*parts) for ipu in self._others) / total if total else 0.0
        return self._busiest.of(Part.TURNS) * share

    def _of_update_turns(self, cause: Cause) -> float:
        """Returns the seconds that the busiest IPU waits for one cause of other IPUs' updates."""
        others = [update for update in self._plan.updates if update.ipu != self._busiest.ipu]
        cycles = {
            Cause.UPDATE: math.fsum(update.optimizer_cycles for update in others),
            Cause.STREAMING: math.fsum(update.remote_cycles for update in others),
        }
        total = sum(cycles.values())
        share = cycles.get(cause, 0.0) / total if total else float(cause is Cause.UPDATE)
        return self._busiest.of(Part.UPDATE_TURNS) * share


def _work(ipu: IpuTime) -> float:
    return ipu.of(Group.WORK, Group.TRANSFER, Part.INPUT, Part.OUTPUT)
