"""Divides the time of each IPU during a step into the exclusive parts of `step_parts.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.plan.time.time_plan import IpuTime, StageTime, UpdateTime
from poptorch_emu.plan.time.window import Window
from poptorch_emu.schedule.schedule import Port

# Attributes of `ActionTime` and of `UpdateTime` that add up to each part.
_OF_ACTIONS: Mapping[Part, tuple[str, ...]] = {
    Part.COMPUTE: ("compute_cycles",),
    Part.EXCHANGE: ("exchange_cycles", "stash_cycles"),
    Part.SYNC: ("sync_cycles",),
    Part.RECOMPUTE: ("recompute_cycles",),
    Part.PROPORTION: ("proportion_cycles",),
    Part.LINK: ("link_cycles",),
    Part.STREAMING: ("remote_cycles",),
    Part.ALL_REDUCE: ("reduce_cycles",),
    Part.INPUT: ("input_cycles",),
    Part.OUTPUT: ("output_cycles",),
}
_OF_UPDATE: Mapping[Part, str] = {
    Part.UPDATE: "optimizer_cycles",
    Part.STREAMING: "remote_cycles",
    Part.ALL_REDUCE: "reduce_cycles",
}


def ipu_times(
    window: Window,
    stages: Sequence[StageTime],
    updates: Sequence[UpdateTime],
    ipu_ids: Sequence[int],
    scale: float,
    outside: Mapping[Part, float],
) -> Iterator[IpuTime]:
    """Yields the seconds of each part of a step, for each IPU.

    Args:
        window: the micro-batches of an update, or of a call in inference.
        stages: times of the stages for one micro-batch.
        updates: time of the update on each IPU; empty in inference.
        ipu_ids: the user's number of each virtual IPU.
        scale: factor from cycles of a window to seconds of a step.
        outside: seconds of those parts of a step that are outside of all windows.
    """

    def cycles_of(port: Port) -> float:
        return stages[port[1]].of(port[0]).cycles

    end, count = window.cycles(cycles_of), window.num_micro_batches
    period = window.period(cycles_of)
    busy = window.busy_cycles(cycles_of)
    last_update = max((update.cycles for update in updates), default=0.0)
    for index, ipu in enumerate(ipu_ids):
        actions = [action for stage in stages if stage.ipu == ipu for action in stage.parts]
        cycles = dict.fromkeys(Part, 0.0)
        for part, names in _OF_ACTIONS.items():
            cycles[part] += count * math.fsum(getattr(a, name) for a in actions for name in names)
        idle = max(0.0, end - busy[index])
        if window.is_pipelined:
            cycles[Part.IMBALANCE] = min(idle, max(0.0, count * period - busy[index]))
            cycles[Part.RAMP] = idle - cycles[Part.IMBALANCE]
        else:
            cycles[Part.TURNS] = idle
        if updates:
            for part, name in _OF_UPDATE.items():
                cycles[part] += getattr(updates[index], name)
            own = updates[index].cycles - updates[index].wait_cycles
            cycles[Part.UPDATE_TURNS] = last_update - own
        seconds = {part: number * scale for part, number in cycles.items()}
        yield IpuTime(ipu, {**seconds, **outside})
