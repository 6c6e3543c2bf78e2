"""Slots of a schedule from the order of its rows: an action that comes too early is delayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.legality import check_each_action_once, check_order
from poptorch_emu.schedule.schedule import Cell, Schedule


def with_waits(schedule: Schedule) -> Schedule:
    """Returns the schedule that puts each cell after all results that its actions need.

    Cells only move to later slots and keep their order in the row, so a legal schedule does not
    change. In training the updates come last, in a slot of their own.

    Args:
        schedule: schedule whose rows have the right order, but perhaps too few empty slots.

    Raises:
        ScheduleError: an action is missing, runs twice or is on a wrong IPU, or IPUs wait for ever.
    """
    check_each_action_once(schedule)
    slot_of: dict[Action, int] = {}
    pending = [
        deque((slot, cell) for slot, cell in enumerate(map(_without_updates, row)) if cell)
        for row in schedule.rows
    ]
    rows: list[list[Cell]] = [[] for _ in pending]
    is_progressing = True
    while is_progressing:
        is_progressing = False
        for queue, row in zip(pending, rows, strict=True):
            while queue and (needed := _slots_needed(queue[0][1], schedule, slot_of)) is not None:
                wanted, cell = queue.popleft()
                slot = max([wanted, len(row), *(1 + earlier for earlier in needed)])
                row += [()] * (slot - len(row)) + [cell]
                slot_of |= dict.fromkeys(cell, slot)
                is_progressing = True
    waiting = {
        ipu: next(_missing(queue[0][1], schedule, slot_of))
        for ipu, queue in enumerate(pending)
        if queue
    }
    check_order(schedule, waiting)
    return replace(schedule, rows=filled(rows, schedule.is_training))


def filled(rows: Sequence[Sequence[Cell]], is_training: bool) -> tuple[tuple[Cell, ...], ...]:
    """Returns rows of equal length. In training one more slot at the end holds the updates."""
    longest = max(map(len, rows), default=0)
    return tuple(
        (*row, *[()] * (longest - len(row)), *_update(ipu, is_training))
        for ipu, row in enumerate(rows)
    )


def _slots_needed(cell: Cell, schedule: Schedule, slot_of: dict[Action, int]) -> list[int] | None:
    """Returns the slots of the actions that a cell needs; `None` if one of them has no slot yet."""
    found, needs = [], schedule.needs
    for index, action in enumerate(cell):
        for needed in needs[action]:
            slot = slot_of.get(needed)
            if slot is not None:
                found.append(slot)
            elif needed not in cell[:index]:
                return None
    return found


def _missing(
    cell: Cell, schedule: Schedule, slot_of: dict[Action, int]
) -> Iterator[tuple[Action, Action]]:
    """Yields each action of a cell with an action that it needs and that has no slot."""
    for index, action in enumerate(cell):
        for needed in schedule.needs[action]:
            if needed not in slot_of and needed not in cell[:index]:
                yield action, needed


def _without_updates(cell: Cell) -> Cell:
    return tuple(action for action in cell if action.kind is not Kind.UPDATE)


def _update(ipu: int, is_training: bool) -> tuple[Cell, ...]:
    return ((Action(Kind.UPDATE, ipu, 0),),) if is_training else ()
