"""All strategies by kind: builds a schedule from a kind, IPUs, micro-batches and the mode."""

from __future__ import annotations

from enum import Enum

from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.sequential import sequential


class ScheduleKind(Enum):
    """The order of execution of the stages.

    All kinds but the first two run one stage at a time, unless stages of a phase are independent of
    each other. Sharding has the slots of a sequential pipeline but allows any number of
    micro-batches. Serial phases share one group of IPUs. Parallel phases alternate between the even
    and the odd IPUs, so that one group fetches weights while the other computes. The schedule shows
    neither the fetching nor the alternation: the map from stages to IPUs has the alternation, and
    `segments/phases.py` checks it.
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
        kind: kind of the strategy.
        ipu_of_stage: IPU of each forward stage, numbered 0, 1, 2, ... without a gap. An IPU may
            have several stages, next to each other or not.
        num_micro_batches: gradient accumulation in training, device iterations in inference.
        is_training: whether the schedule has backward actions and updates.
        level_of_stage: level of each stage in phased execution, where the stages of one level run
            side by side; empty for a chain of stages.

    Raises:
        ValueError: the IPUs have a gap, or the schedule has no stage or no micro-batch.
    """
    if kind is ScheduleKind.GROUPED:
        return grouped(ipu_of_stage, num_micro_batches, is_training)
    if kind is ScheduleKind.INTERLEAVED:
        return interleaved(ipu_of_stage, num_micro_batches, is_training)
    return sequential(ipu_of_stage, num_micro_batches, is_training, level_of_stage)
