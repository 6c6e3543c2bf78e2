"""A schedule as CSV that parses back.

There is one row for each IPU and one column for each slot. The actions of one slot are joined by
`|`, for example `1F0|1B0`. The functions here do not check whether the schedule is legal.
"""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.schedule import Cell, Schedule

_LEVELS = "# levels of the stages: "


def to_csv(schedule: Schedule) -> str:
    """Returns the schedule as CSV; `from_csv` is the inverse.

    Levels of stages that run side by side stand in a comment before the rows.
    """
    levels = " ".join(map(str, schedule.level_of_stage))
    head = f"{_LEVELS}{levels}\n" if levels else ""
    return head + "".join(",".join(map(cell_text, row)) + "\n" for row in schedule.rows)


def from_csv(text: str) -> Schedule:
    """Returns the schedule that `text` describes; other lines that start with `#` are comments.

    The actions determine the stages, the number of micro-batches and whether it is training.

    Raises:
        ValueError: a cell does not parse, the forwards of a stage are on two IPUs or nowhere, or
            the rows are not a table.
    """
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = tuple(tuple(map(_parse_cell, line.split(","))) for line in lines)
    levels = tuple(
        int(level)
        for line in text.splitlines()
        if line.startswith(_LEVELS)
        for level in line.removeprefix(_LEVELS).split()
    )
    return schedule_of_rows(rows, levels)


def schedule_of_rows(
    rows: Sequence[Sequence[Cell]], level_of_stage: tuple[int, ...] = ()
) -> Schedule:
    """Returns the schedule whose stages, micro-batches and mode follow from its actions.

    Raises:
        ValueError: the forwards of a stage are on two IPUs or nowhere, or the rows are not a table.
    """
    actions = [action for row in rows for cell in row for action in cell]
    return Schedule(
        ipu_of_stage=_ipu_of_stage(rows),
        num_micro_batches=1 + max((action.micro_batch for action in actions), default=-1),
        is_training=any(action.kind is not Kind.FORWARD for action in actions),
        rows=tuple(map(tuple, rows)),
        level_of_stage=level_of_stage,
    )


def cell_text(cell: Cell) -> str:
    """Returns the text of the actions of an IPU in a slot."""
    return "|".join(map(str, cell))


def _parse_cell(text: str) -> Cell:
    return tuple(map(parse_action, text.split("|"))) if text else ()


def _ipu_of_stage(rows: Sequence[Sequence[Cell]]) -> tuple[int, ...]:
    ipus: dict[int, int] = {}
    for ipu, row in enumerate(rows):
        forwards = [a for cell in row for a in cell if a.kind is Kind.FORWARD]
        for action in forwards:
            if ipus.setdefault(action.stage, ipu) != ipu:
                raise ValueError(
                    f"Stage {action.stage} has forwards on IPU {ipus[action.stage]} and on IPU "
                    f"{ipu}: a stage runs on one IPU only."
                )
    missing = sorted(set(range(1 + max(ipus, default=-1))) - ipus.keys())
    if missing:
        raise ValueError(f"Stages {missing} have no forward: every stage needs an IPU.")
    return tuple(ipus[stage] for stage in sorted(ipus))
