"""One micro-batch at a time through all stages: a pipeline that never overlaps."""

from __future__ import annotations

from poptorch_emu.schedule.layout import lay_out, num_indices
from poptorch_emu.schedule.schedule import Schedule


def sequential(
    ipu_of_stage: tuple[int, ...],
    num_micro_batches: int,
    is_training: bool,
    level_of_stage: tuple[int, ...] = (),
) -> Schedule:
    """Returns the schedule with one working IPU at a time, forward and then backward.

    With M micro-batches and N stages it lasts M * (2N - 1) slots and the update in training, and
    M * N slots in inference.

    Args:
        ipu_of_stage: IPU of each of the N stages.
        num_micro_batches: number M of micro-batches.
        is_training: whether the schedule has backward actions and updates.
        level_of_stage: level of each stage if stages run side by side. N is then the number of
            levels.
    """
    num_levels = 1 + max(level_of_stage or range(len(ipu_of_stage)), default=-1)
    period = num_indices(num_levels, is_training)
    return lay_out(
        ipu_of_stage,
        num_micro_batches,
        is_training,
        lambda index, m: index + period * m,
        level_of_stage,
    )
