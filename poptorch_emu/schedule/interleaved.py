"""The interleaved pipeline: an IPU alternates forward and backward (one forward, one backward)."""

from __future__ import annotations

from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.layout import lay_out
from poptorch_emu.schedule.schedule import Schedule


def interleaved(
    ipu_of_stage: tuple[int, ...], num_micro_batches: int, is_training: bool
) -> Schedule:
    """Returns the interleaved pipeline, with one forward or one backward of a stage in each slot.

    With M micro-batches and N > 1 stages it lasts 2M + 2N - 2 slots and the update. The last
    stage's forward and backward share one slot but need the time of two, so its next slot stays
    empty. Stage s (from 0) stashes N - s micro-batches; the published bound for any stage is N + 1.
    Inference has no backward to interleave, so it uses the grouped schedule.
    """
    if not is_training:
        return grouped(ipu_of_stage, num_micro_batches, is_training)
    last = len(ipu_of_stage) - 1

    def slot(index: int, micro_batch: int) -> int:
        return index + (index > last) + 2 * micro_batch

    return lay_out(ipu_of_stage, num_micro_batches, is_training, slot)
