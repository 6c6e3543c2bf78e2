"""When each action of a schedule runs if an IPU waits for nothing but what the action needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Port, Schedule

# What an action takes in pictures of pipelines: each half of a backward is as long as a forward.
_UNITS = {
    Kind.FORWARD: 1.0,
    Kind.RECOMPUTE: 1.0,
    Kind.BACKWARD: 2.0,
    Kind.BACKWARD_INPUTS: 1.0,
    Kind.BACKWARD_WEIGHTS: 1.0,
}


def unit_lengths(port: Port) -> float:
    """Returns how long an action takes in the units of such pictures."""
    return _UNITS[port[0]]


@dataclass(frozen=True)
class FreeRun:
    """When everything happens; times have the unit of the lengths.

    Attributes:
        begins: of each action, without updates.
        ends: likewise.
        busy: of each IPU, how long it works.
        spans: of each IPU, from the begin of its first action to the end of its last.
    """

    begins: dict[Action, float]
    ends: dict[Action, float]
    busy: tuple[float, ...]
    spans: tuple[float, ...]

    @property
    def end(self) -> float:
        """When the last action is over, and the updates can begin."""
        return max(self.ends.values(), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of the time of all IPUs in which they wait, until the last one is done."""
        total = len(self.busy) * self.end
        return 1.0 - sum(self.busy) / total if total else 0.0

    @property
    def bubble_within(self) -> float:
        """The largest share in which an IPU waits between its own first and last action.

        This is the bubble where an IPU need not wait for the updates of the others. Source: Qi et
        al., "Zero bubble pipeline parallelism" (arXiv 2401.10241), section 5.
        """
        longest = max(self.spans, default=0.0)
        return 1.0 - max(self.busy) / longest if longest else 0.0


def free_run(schedule: Schedule, length_of: Callable[[Port], float] = unit_lengths) -> FreeRun:
    """Runs a legal schedule; each IPU goes through its list as fast as it can.

    Args:
        schedule: whose slots play no part.
        length_of: how long each kind of action takes on a stage; a whole backward of a stage that
            is cut takes as long as both halves.
    """
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
                length = sum(map(length_of, schedule.ports_of(action)))
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
