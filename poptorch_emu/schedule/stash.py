"""Number of micro-batches that a stage keeps between its forward and the end of its backward."""

from __future__ import annotations

from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Schedule, link_depth


def stash_slots(stage: int, num_stages: int) -> int:
    """Returns how many micro-batches `stage` of a grouped pipeline holds in the steady state.

    The published formula is 2(N - s) + 1 with stages counted from 1. The one slot of the last stage
    is the result of the forward that has just run, so it needs no copy.

    Args:
        stage: forward stage, in [0, num_stages).
        num_stages: number of forward stages.

    Raises:
        ValueError: `stage` is out of range.

    Source: PopART, pipeline transformation; checked against `stash_depths` by the tests.
    """
    if not 0 <= stage < num_stages:
        raise ValueError(f"stage is {stage}: expected at least 0 and below {num_stages}.")
    return 2 * (num_stages - 1 - stage) + 1


def stash_depths(schedule: Schedule) -> tuple[int, ...]:
    """Returns the largest number of micro-batches that each stage holds; zeros in inference."""
    if not schedule.is_training:
        return (0,) * schedule.num_stages
    return tuple(
        link_depth(schedule, (Kind.FORWARD, stage), (kinds[-1], stage))
        for stage, kinds in enumerate(schedule.kinds)
    )
