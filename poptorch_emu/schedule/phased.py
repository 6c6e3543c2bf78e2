"""Phased execution: phases run one after the other, their weights fetched when needed.

Serial phases share one group of IPUs; parallel phases alternate between the even and the odd IPUs,
so that one group fetches while the other computes. Fetching is no action of a schedule, and the
alternation is in the map from stages to IPUs, so both are the same schedule. That even phases are
on even IPUs is checked where the phases are known, not here. Stages of one phase that do not need
each other run side by side.
"""

from __future__ import annotations

from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.sequential import sequential


def phased(
    ipu_of_stage: tuple[int, ...],
    num_micro_batches: int,
    is_training: bool,
    level_of_stage: tuple[int, ...] = (),
) -> Schedule:
    """Returns the schedule in which each micro-batch goes through all phases before the next."""
    return sequential(ipu_of_stage, num_micro_batches, is_training, level_of_stage)
