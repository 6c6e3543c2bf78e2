"""Builds the schedule of a strategy from a rule for the slots.

The forward and backward stages form one line: forward stage s has index s and its backward has
index 2N - 2 - s, so that the last stage's forward and backward share an index. A strategy is then a
rule that returns the slot of (index, micro-batch). If stages run side by side, their level replaces
their number.
"""

from __future__ import annotations

from collections.abc import Callable

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Schedule

# (index in the line of stages, micro-batch) -> slot
SlotRule = Callable[[int, int], int]


def num_indices(num_stages: int, is_training: bool) -> int:
    """Returns the number of indices for N stages or levels: 2N - 1 in training, otherwise N.

    Source: user guide of PopTorch, pipelined execution, where the last forward and backward stage
    count as one.
    """
    return 2 * num_stages - 1 if is_training else num_stages


def enough_micro_batches(num_stages: int) -> int:
    """Returns a number of micro-batches that lets a pipeline fill, run full, and drain."""
    return 4 * num_stages


def lay_out(
    ipu_of_stage: tuple[int, ...],
    num_micro_batches: int,
    is_training: bool,
    slot_rule: SlotRule,
    level_of_stage: tuple[int, ...] = (),
) -> Schedule:
    """Returns the schedule that puts each action into the slot from `slot_rule`.

    An IPU with several actions in one slot runs them in the order of the line. In training the last
    slot holds only the updates.

    Raises:
        ValueError: as `Schedule` does.
    """
    cells: dict[tuple[int, int], list[Action]] = {}
    levels = level_of_stage or tuple(range(len(ipu_of_stage)))
    for index, kind, stage in _line(levels, is_training):
        for micro_batch in range(num_micro_batches):
            slot = slot_rule(index, micro_batch)
            cell = cells.setdefault((ipu_of_stage[stage], slot), [])
            cell.append(Action(kind, stage, micro_batch))
    num_slots = 1 + max((slot for _, slot in cells), default=-1)
    ipus = range(len(set(ipu_of_stage)))
    if is_training:
        cells |= {(ipu, num_slots): [Action(Kind.UPDATE, ipu, 0)] for ipu in ipus}
        num_slots += 1
    rows = tuple(
        tuple(tuple(cells.get((ipu, slot), ())) for slot in range(num_slots)) for ipu in ipus
    )
    return Schedule(ipu_of_stage, num_micro_batches, is_training, rows, level_of_stage)


def _line(levels: tuple[int, ...], is_training: bool) -> list[tuple[int, Kind, int]]:
    line = [(level, Kind.FORWARD, stage) for stage, level in enumerate(levels)]
    if is_training and levels:
        last = num_indices(1 + max(levels), is_training) - 1
        line += [(last - level, Kind.BACKWARD, stage) for level, _, stage in reversed(line)]
    return line
