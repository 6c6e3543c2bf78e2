"""A schedule as rows of text that `torch.distributed.pipelining` reads."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Cell, Schedule


def pytorch_rows(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """Returns the actions of each rank in order, in PyTorch's notation.

    Recomputation and updates are left out, because PyTorch's schedules have no such actions. Empty
    slots are left out, because PyTorch's runtime waits for inputs by itself.
    """
    return tuple(tuple(text for cell in row for text in _texts(cell)) for row in schedule.rows)


def _texts(cell: Cell) -> Iterator[str]:
    left_out = (Kind.UPDATE, Kind.RECOMPUTE)
    actions = [action for action in cell if action.kind not in left_out]
    is_overlap = [action.kind for action in actions] == [Kind.FORWARD, Kind.BACKWARD]
    # A backward that follows its own forward cannot run beside it.
    if is_overlap and actions[0].stage != actions[1].stage:
        yield f"({actions[0]};{actions[1]})OVERLAP_F_B"
    else:
        yield from map(str, actions)
