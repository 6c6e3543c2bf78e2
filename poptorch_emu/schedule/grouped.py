"""The grouped pipeline, which is PopTorch's default.

In every pipeline cycle each IPU runs a forward and then a backward, for different micro-batches.
Only the last stage runs both for the same one. Weights change after the pipeline has run empty.
"""

from __future__ import annotations

from poptorch_emu.schedule.layout import lay_out
from poptorch_emu.schedule.schedule import Schedule


def grouped(ipu_of_stage: tuple[int, ...], num_micro_batches: int, is_training: bool) -> Schedule:
    """Returns the grouped pipeline: index k of the line runs micro-batch c - k in cycle c.

    With M micro-batches and N stages it lasts M + 2N - 2 cycles and the update in training, and
    M + N - 1 cycles in inference.
    """
    return lay_out(ipu_of_stage, num_micro_batches, is_training, lambda index, m: index + m)
