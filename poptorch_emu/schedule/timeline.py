"""When each action starts and ends, given how long each takes.

The unit of time is that of the durations. Costs and hardware are the caller's; this only adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from poptorch_emu.schedule.actions import Action
from poptorch_emu.schedule.schedule import Port, Schedule, links

Timeline = dict[Action, tuple[float, float]]


def timeline(schedule: Schedule, duration: Callable[[Action], float]) -> Timeline:
    """Returns start and end of each action of a legal schedule.

    Each IPU runs its list in order and starts an action as soon as it is free and all inputs have
    been computed. Slots are not barriers, and links never make a producer wait.
    """
    producers: defaultdict[Port, list[Port]] = defaultdict(list)
    for producer, consumer in links(schedule.levels, schedule.is_training):
        producers[consumer].append(producer)

    times: Timeline = {}
    free_at = [0.0] * schedule.num_ipus
    # In a legal schedule the inputs of an action stand in earlier slots or before it in its own.
    for slot in range(schedule.num_slots):
        for ipu, row in enumerate(schedule.rows):
            for action in row[slot]:
                inputs = [
                    times[Action(kind, stage, action.micro_batch)][1]
                    for kind, stage in producers[action.kind, action.stage]
                ]
                start = max([free_at[ipu], *inputs])
                free_at[ipu] = start + duration(action)
                times[action] = (start, free_at[ipu])
    return times


def makespan(times: Timeline) -> float:
    """Returns the time from 0 to the end of the last action."""
    return max(end for _, end in times.values())


def busy_fractions(schedule: Schedule, times: Timeline) -> tuple[float, ...]:
    """Returns for each IPU the part of the makespan in which it works, in [0, 1]."""
    total = makespan(times)
    busy = [
        sum(times[action][1] - times[action][0] for action in schedule.actions(ipu))
        for ipu in range(schedule.num_ipus)
    ]
    return tuple(work / total if total else 0.0 for work in busy)
