"""The door to the strategies: a kind of schedule and three values make a schedule."""

from __future__ import annotations

from enum import Enum

from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.sequential import sequential


class ScheduleKind(Enum):
    """How the stages share time.

    All but the first two run one stage at a time, unless stages of a phase do not need each other.
    Sharding differs from a sequential pipeline in what the stages are: it asks nothing of the
    number of micro-batches. Serial phases share one group of IPUs; parallel ones alternate between
    the even and the odd IPUs, so that one group fetches weights while the other computes. Fetching
    is no action of a schedule, and the alternation is in the map from stages to IPUs; that even
    phases are on even IPUs is checked where the phases are known.
    """

    GROUPED = "grouped"
    INTERLEAVED = "interleaved"
    SEQUENTIAL = "sequential"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial_phased"
    PARALLEL_PHASED = "parallel_phased"


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
    if kind is ScheduleKind.GROUPED:
        return grouped(ipu_of_stage, num_micro_batches, is_training)
    if kind is ScheduleKind.INTERLEAVED:
        return interleaved(ipu_of_stage, num_micro_batches, is_training)
    return sequential(ipu_of_stage, num_micro_batches, is_training, level_of_stage)
