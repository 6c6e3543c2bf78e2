"""Tables of the user's own: rows of text, as one writes them or as PyTorch does.

A cell is empty, or has one action or several that are joined by `|`. What PyTorch writes for a
forward and a backward that overlap, `(0F3;1B2)OVERLAP_F_B`, is read as well. Papers on zero bubbles
write B for the gradients of inputs and BW for a whole backward: so a B is read where the same row
has a W of the same stage and micro-batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from poptorch_emu.schedule.actions import Action, Kind, parse_action
from poptorch_emu.schedule.csv_text import schedule_of_rows
from poptorch_emu.schedule.schedule import Cell, Schedule
from poptorch_emu.schedule.steps import filled, with_waits

_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")


def read_table(rows: Sequence[Sequence[str]]) -> Schedule:
    """Returns the schedule of a table; an action that stands too early waits for what it needs.

    Stages, micro-batches and whether it is training follow from the actions. Updates may be left
    out. Rows may have any lengths.

    Args:
        rows: one for each IPU, with the text of a cell for each step.

    Raises:
        ValueError: a cell is none, or what the rows say is no schedule.
        ScheduleError: it is not legal.
    """
    cells = [_row([_cell(text) for text in row]) for row in rows]
    read = schedule_of_rows(filled(cells, is_training=False))
    table = filled(cells, read.is_training)
    return with_waits(replace(read, rows=table))


def _cell(text: str) -> Cell:
    text = text.replace(" ", "")
    overlap = _OVERLAP.fullmatch(text)
    parts = overlap[1].split(";") if overlap else text.split("|")
    return tuple(parse_action(part.replace("BW", "B")) for part in parts if part)


def _row(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the cells without updates, their halves of backwards by their own letters."""
    halves = {
        (action.stage, action.micro_batch)
        for cell in cells
        for action in cell
        if action.kind is Kind.BACKWARD_WEIGHTS
    }
    return [
        tuple(_by_its_letter(action, halves) for action in cell if action.kind is not Kind.UPDATE)
        for cell in cells
    ]


def _by_its_letter(action: Action, halves: set[tuple[int, int]]) -> Action:
    is_half = action.kind is Kind.BACKWARD and (action.stage, action.micro_batch) in halves
    return replace(action, kind=Kind.BACKWARD_INPUTS) if is_half else action
