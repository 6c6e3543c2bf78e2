"""Schedules whose actions join micro-batches that follow each other."""

from __future__ import annotations

from dataclasses import replace

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Cell, Schedule


def joined_schedule(schedule: Schedule, count: int) -> Schedule:
    """Returns the schedule of actions that join `count` micro-batches each.

    Each stands where a port has its last turn for one of them. What it needs stands before it,
    since that holds for this turn; and a whole backward of a stage that is cut is its two halves.
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
