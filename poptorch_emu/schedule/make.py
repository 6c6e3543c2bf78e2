"""The door to the strategies: a kind of schedule and three values make a schedule."""

from __future__ import annotations

from enum import Enum

from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.phased import phased
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.sequential import sequential
from poptorch_emu.schedule.sharded import sharded


class ScheduleKind(Enum):
    """How the stages share time."""

    GROUPED = "grouped"
    INTERLEAVED = "interleaved"
    SEQUENTIAL = "sequential"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial_phased"
    PARALLEL_PHASED = "parallel_phased"


_STRATEGIES = {
    ScheduleKind.GROUPED: grouped,
    ScheduleKind.INTERLEAVED: interleaved,
    ScheduleKind.SEQUENTIAL: sequential,
    ScheduleKind.SHARDED: sharded,
}
_PHASED = {ScheduleKind.SERIAL_PHASED, ScheduleKind.PARALLEL_PHASED}


def make_schedule(
    kind: ScheduleKind,
    ipu_of_stage: tuple[int, ...],
    num_micro_batches: int,
    is_training: bool,
    level_of_stage: tuple[int, ...] = (),
) -> Schedule:
    """Returns the schedule of one window.

    Args:
        kind: the strategy.
        ipu_of_stage: for each forward stage its IPU, numbered 0, 1, 2, ... without a gap. An IPU
            may have several stages, next to each other or not.
        num_micro_batches: gradient accumulation in training, device iterations in inference.
        is_training: whether there are backward actions and updates.
        level_of_stage: of phased execution, where stages of one level run side by side; empty for a
            chain of stages, as all others have it.

    Raises:
        ValueError: the IPUs have a gap, or there is no stage or no micro-batch.
    """
    if kind in _PHASED:
        return phased(ipu_of_stage, num_micro_batches, is_training, level_of_stage)
    return _STRATEGIES[kind](ipu_of_stage, num_micro_batches, is_training)
