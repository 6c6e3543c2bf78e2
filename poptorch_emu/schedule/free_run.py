"""The times of the actions of a schedule if each IPU waits only for the results that it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Port, Schedule

# Lengths of actions in textbook pictures: each half of a backward is as long as a forward.
_UNITS = {
    Kind.FORWARD: 1.0,
    Kind.RECOMPUTE: 1.0,
    Kind.BACKWARD: 2.0,
    Kind.BACKWARD_INPUTS: 1.0,
    Kind.BACKWARD_WEIGHTS: 1.0,
}


def unit_lengths(port: Port) -> float:
    """Returns the length of an action in the units of textbook pictures."""
    return _UNITS[port[0]]


@dataclass(frozen=True)
class FreeRun:
    """Times of a run, in the unit of the actions' lengths.

    Attributes:
        begins: time at which each action begins; updates are left out.
        ends: time at which each action ends; updates are left out.
        busy: total working time of each IPU.
        spans: time from the begin of each IPU's first action to the end of its last.
    """

    begins: dict[Action, float]
    ends: dict[Action, float]
    busy: tuple[float, ...]
    spans: tuple[float, ...]

    @property
    def end(self) -> float:
        """The time at which the last action ends, so that the updates can begin."""
        return max(self.ends.values(), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of all IPUs' time, from 0 to `end`, in which they wait."""
        total = len(self.busy) * self.end
        return 1.0 - sum(self.busy) / total if total else 0.0

    @property
    def bubble_within(self) -> float:
        """The share of the longest span between first and last action that the busiest IPU waits.

        This is the bubble if no IPU has to wait for the updates of the others. Source: Qi et al.,
        "Zero bubble pipeline parallelism" (arXiv 2401.10241), section 5.
        """
        longest = max(self.spans, default=0.0)
        return 1.0 - max(self.busy) / longest if longest else 0.0


def free_run(schedule: Schedule, length_of: Callable[[Port], float] = unit_lengths) -> FreeRun:
    """Runs a legal schedule. Each IPU works through its list as fast as it can.

    Args:
        schedule: legal schedule, whose slots are ignored.
        length_of: function that returns the length of a kind of action on a stage. If a stage has
            its backward in two halves, a whole backward takes as long as both.
    """
    ports = [
        (kind, stage)
        for stage, kinds in enumerate(schedule.kinds)
        for kind in (Kind.FORWARD, *kinds)
    ]
    return _run(schedule, tuple((port, length_of(port)) for port in ports))


# Several figures of a plan follow from the same run.
@lru_cache(maxsize=16)
def _run(schedule: Schedule, lengths: tuple[tuple[Port, float], ...]) -> FreeRun:
    length_of = dict(lengths)
    begins, ends = dict[Action, float](), dict[Action, float]()
    free, needs = [0.0] * schedule.num_ipus, schedule.needs
    pending = [
        deque(action for action in schedule.actions(ipu) if action.kind is not Kind.UPDATE)
        for ipu in range(schedule.num_ipus)
    ]
    is_progressing = True
    while is_progressing:
        is_progressing = False
        for ipu, queue in enumerate(pending):
            while queue and all(needed in ends for needed in needs[queue[0]]):
                action = queue.popleft()
                begin = max([free[ipu], *(ends[needed] for needed in needs[action])])
                length = sum(length_of[port] for port in schedule.ports_of(action))
                begins[action], ends[action] = begin, begin + length
                free[ipu] = begin + length
                is_progressing = True
    assert not any(pending), "a schedule is checked before it runs"
    rows = [
        [action for action in schedule.actions(ipu) if action in begins]
        for ipu in range(schedule.num_ipus)
    ]
    busy = tuple(sum(ends[one] - begins[one] for one in row) for row in rows)
    spans = tuple(ends[row[-1]] - begins[row[0]] if row else 0.0 for row in rows)
    return FreeRun(begins, ends, busy, spans)
