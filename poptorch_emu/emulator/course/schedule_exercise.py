"""Exercise 5: pick a schedule with a small bubble and a small stash."""

from __future__ import annotations

from poptorch_emu.config import TableConfig
from poptorch_emu.emulator import schedules
from poptorch_emu.emulator.course.exercise import Exercise, Findings
from poptorch_emu.emulator.schedules import PipelineSchedule
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.stash import stash_depths

NUM_IPUS, MICRO_BATCHES = 4, 8
MOST_BUBBLE, MOST_STASHED = 0.12, 5


def _assess(answer: PipelineSchedule | str) -> Findings:
    if isinstance(answer, str):
        if answer not in schedules.NAMED:
            known = ", ".join(schedules.NAMED)
            return Findings((f"There is no schedule {answer!r}. Choose one of {known}.",))
        answer = schedules.NAMED[answer]()
    plan = answer.plan(NUM_IPUS, MICRO_BATCHES)
    grid = plan.grid
    if (grid.num_ipus, grid.num_micro_batches) != (NUM_IPUS, MICRO_BATCHES):
        return Findings((
            f"The table has {grid.num_ipus} IPUs and {grid.num_micro_batches} micro-batches, but "
            f"the task has {NUM_IPUS} and {MICRO_BATCHES}.",
        ))  # fmt: skip
    stashed = _stashed(grid)
    faults = []
    if plan.bubble > MOST_BUBBLE:
        faults.append(
            f"The bubble is {plan.bubble:.1%}, but at most {MOST_BUBBLE:.0%} is asked for. What "
            "could an IPU do while it waits for a gradient?"
        )
    if stashed > MOST_STASHED:
        faults.append(
            f"An IPU stashes {stashed:g} micro-batches, but at most {MOST_STASHED} are asked for. "
            "A backward frees a stash: which schedule begins it early?"
        )
    facts = (
        f"The bubble is {plan.bubble:.1%}, and an IPU stashes at most {stashed:g} micro-batches.",
    )
    return Findings(tuple(faults), facts)


def _stashed(grid: Schedule) -> float:
    """Returns the stash of the fullest IPU in micro-batches of the whole model."""
    held = [0] * grid.num_ipus
    for depth, ipu in zip(stash_depths(grid), grid.ipu_of_stage, strict=True):
        held[ipu] += depth
    return max(held) * grid.num_ipus / grid.num_stages


EXERCISE = Exercise(
    "pick a schedule", "a value of emulator.schedules, or the name of one", (TableConfig, str),
    _assess,
)  # fmt: skip
