"""One micro-batch at a time through all stages: a pipeline that never overlaps."""

from __future__ import annotations

from poptorch_emu.schedule.layout import lay_out, num_indices
from poptorch_emu.schedule.schedule import Schedule


def sequential(
    ipu_of_stage: tuple[int, ...], num_micro_batches: int, is_training: bool
) -> Schedule:
    """Returns the schedule in which one IPU works at a time, forward and then backward.

    Takes M * (2N - 1) slots and the update in training, M * N slots in inference.
    """
    period = num_indices(len(ipu_of_stage), is_training)
    return lay_out(
        ipu_of_stage, num_micro_batches, is_training, lambda index, m: index + period * m
    )
