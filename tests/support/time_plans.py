"""Time plans with invented cycles, for the tests of schedules over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poptorch_emu.plan.time.ipu_times import ipu_times
from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.plan.time.time_plan import (
    ActionTime,
    StageTime,
    TimePlan,
    UpdateTime,
)
from poptorch_emu.plan.time.window import Window
from poptorch_emu.schedule.make import ScheduleKind
from poptorch_emu.schedule.schedule import Schedule


def made_of(
    kind: ScheduleKind | None,
    ipu_of_stage: Sequence[int],
    num_micro_batches: int,
    forward: Sequence[float],
    backward: Sequence[float] = (),
    update: float = 0.0,
    clock_hz: float = 1.0,
    weights: Sequence[float] = (),
    table: Schedule | None = None,
) -> TimePlan:
    """Returns a plan with the given cycles of stages; `table` is the schedule if `kind` is none."""
    is_training = bool(backward)
    window = Window(kind, tuple(ipu_of_stage), (), num_micro_batches, is_training, table)
    stages = tuple(
        StageTime(
            stage,
            ipu,
            (),
            ActionTime(compute_cycles=forward[stage]),
            ActionTime(compute_cycles=backward[stage] if is_training else 0.0),
            ActionTime(compute_cycles=weights[stage] if weights else 0.0),
        )
        for stage, ipu in enumerate(ipu_of_stage)
    )
    ipus = sorted(set(ipu_of_stage))

    def cycles_of(port):
        return stages[port[1]].of(port[0]).cycles

    seconds = (window.cycles(cycles_of) + update) / clock_hz
    updates = tuple(UpdateTime(ipu, optimizer_cycles=update) for ipu in ipus if is_training)
    outside = {Part.CALL: 0.0, Part.DATA: 0.0}
    return TimePlan(
        system="", chip="", clock_hz=clock_hz, num_replicas=1, step_seconds=seconds,
        window_seconds=seconds, num_windows=1, samples_per_step=num_micro_batches,
        throughput=None, cycles=round(seconds * clock_hz), unknown=(), rough=(),
        spread_weights=(), assumptions=(), evidence="", stages=stages, updates=updates,
        ipus=tuple(ipu_times(window, stages, updates, ipus, 1 / clock_hz, outside)),
        grid=replace(window, slot_cycles=window.length_of_slots(cycles_of)),
        all_operations=(),
    )  # fmt: skip
