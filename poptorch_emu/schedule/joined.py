"""Schedules with actions that each compute several consecutive micro-batches."""

from __future__ import annotations

from dataclasses import replace

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Cell, Schedule


def joined_schedule(schedule: Schedule, count: int) -> Schedule:
    """Returns the schedule with actions that each compute `count` consecutive micro-batches.

    A joined action takes the place of the last of its actions in `schedule`. All that it needs
    comes before that place, because the last action needs as much. If a stage has its backward in
    two halves, a whole backward becomes both halves.
    """
    if count == 1:
        return schedule

    def joined(cell: Cell) -> Cell:
        found = []
        for action in cell:
            if action.kind is Kind.UPDATE:
                found.append(action)
            for (kind, stage), turn in schedule.turns(action):
                if turn % count == count - 1:
                    found.append(Action(kind, stage, turn // count))
        return tuple(found)

    rows = tuple(tuple(joined(cell) for cell in row) for row in schedule.rows)
    return replace(schedule, num_micro_batches=schedule.num_micro_batches // count, rows=rows)
