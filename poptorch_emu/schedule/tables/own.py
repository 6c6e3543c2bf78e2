"""Tables of the user's own as rows of text, in our notation or in PyTorch's.

A cell is empty, or has one action, or several joined by `|`. PyTorch's notation for a forward and a
backward that overlap, `(0F3;1B2)OVERLAP_F_B`, is accepted, too. Papers on zero bubbles write B for
the gradients of inputs and BW for a whole backward. So a B means the gradients of inputs if the
same row has a W of the same stage and micro-batch.
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
    """Returns the schedule of a table. An action that comes too early waits for its inputs.

    The actions determine the stages, the number of micro-batches and whether it is training.
    Updates may be left out. Rows may have any lengths.

    Args:
        rows: rows with the text of each cell, one row for each IPU and one cell for each step.

    Raises:
        ValueError: a cell does not parse, or the rows are no schedule.
        ScheduleError: the schedule is not legal.
    """
    cells = [
        _row([_cell(text, f"IPU {ipu}, step {step}") for step, text in enumerate(row)])
        for ipu, row in enumerate(rows)
    ]
    _check_numbers([action for row in cells for cell in row for action in cell])
    read = schedule_of_rows(filled(cells, is_training=False))
    table = filled(cells, read.is_training)
    return with_waits(replace(read, rows=table))


def _cell(text: str, place: str) -> Cell:
    text = text.replace(" ", "")
    overlap = _OVERLAP.fullmatch(text)
    parts = overlap[1].split(";") if overlap else text.split("|")
    try:
        return tuple(parse_action(part.replace("BW", "B")) for part in parts if part)
    except ValueError as fault:
        raise ValueError(f"{place}: {fault}") from fault


def _check_numbers(actions: Sequence[Action]) -> None:
    """Refuses numbers of stages or micro-batches that leave gaps.

    Raises:
        ValueError: the table has no actions, or a number is at least the number of all actions.
    """
    if not actions:
        raise ValueError("It has no actions. Write a row for each IPU, such as ['0F0', '0B0'].")
    largest = max(actions, key=lambda action: max(action.stage, action.micro_batch))
    if max(largest.stage, largest.micro_batch) >= len(actions):
        raise ValueError(
            f"It has {largest}, but only {len(actions)} actions in all. Stages and micro-batches "
            "are numbered from 0 on without gaps, and each stage runs each micro-batch."
        )


def _row(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the cells without updates, and with the letter I for gradients of inputs."""
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
    return Action(Kind.BACKWARD_INPUTS, *action[1:]) if is_half else action
