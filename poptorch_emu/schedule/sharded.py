"""Sharded execution: one model cut over several IPUs, without any overlap."""

from __future__ import annotations

from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.sequential import sequential


def sharded(ipu_of_stage: tuple[int, ...], num_micro_batches: int, is_training: bool) -> Schedule:
    """Returns the sharded schedule: the order of a sequential pipeline.

    Sharding and a sequential pipeline differ in what the stages are (sharding asks nothing of the
    number of micro-batches), not in which action follows which.
    """
    return sequential(ipu_of_stage, num_micro_batches, is_training)
