"""Text forms of a schedule: CSV that parses back, and a table for people.

Both have one row for each IPU and one column for each slot; the actions of one slot are joined by
`|`, as in `1F0|1B0`. Nothing here asks whether the schedule is legal.
"""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.schedule import Cell, Schedule
from poptorch_emu.schedule.transfers import Transfer, transfer_row
from poptorch_emu.text_table import to_table

_LEVELS = "# levels of the stages: "


def to_csv(schedule: Schedule) -> str:
    """Returns the schedule as CSV; `from_csv` is the inverse.

    Levels of stages that run side by side stand in a comment before the rows.
    """
    levels = " ".join(map(str, schedule.level_of_stage))
    head = f"{_LEVELS}{levels}\n" if levels else ""
    return head + "".join(",".join(map(_cell_text, row)) + "\n" for row in schedule.rows)


def from_csv(text: str) -> Schedule:
    """Returns the schedule that `text` describes; other lines that start with `#` are comments.

    Stages, micro-batches and whether it is training follow from the actions.

    Raises:
        ValueError: a cell does not parse, the forwards of a stage are on two IPUs or nowhere, or
            the rows are not a table.
    """
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = tuple(tuple(map(_parse_cell, line.split(","))) for line in lines)
    actions = [action for row in rows for cell in row for action in cell]
    return Schedule(
        ipu_of_stage=_ipu_of_stage(rows),
        num_micro_batches=1 + max((action.micro_batch for action in actions), default=-1),
        is_training=any(action.kind is not Kind.FORWARD for action in actions),
        rows=rows,
        level_of_stage=tuple(
            int(level)
            for line in text.splitlines()
            if line.startswith(_LEVELS)
            for level in line.removeprefix(_LEVELS).split()
        ),
    )


def to_grid(
    schedule: Schedule, error_ipu: int | None = None, transfers: Sequence[Transfer] = ()
) -> str:
    """Returns a table with slot numbers, their parts and one labelled row for each IPU.

    An IPU with transfers beside its compute has a second row.

    Args:
        schedule: what to show, legal or not.
        error_ipu: the IPU whose row gets the mark `<-- ERROR HERE`.
        transfers: that overlap.
    """
    rows = grid_rows(schedule, transfers)
    lines = to_table(rows, num_left=len(rows[0]))
    if error_ipu is not None:
        marked = [line[0] for line in rows].index(f"IPU {error_ipu}")
        lines[marked] += "  <-- ERROR HERE"
    return "\n".join(lines)


def grid_rows(schedule: Schedule, transfers: Sequence[Transfer] = ()) -> list[list[str]]:
    """Returns the cells of `to_grid`: slot numbers, their parts, and a row or two for each IPU."""
    table = [["slot", *map(str, range(schedule.num_slots))], ["", *slot_parts(schedule)]]
    for ipu, row in enumerate(schedule.rows):
        table.append([f"IPU {ipu}", *map(_cell_text, row)])
        crossing = transfer_row(schedule, ipu, transfers)
        if crossing is not None:
            table.append([f"IPU {ipu} I/O", *crossing])
    return table


def slot_parts(schedule: Schedule) -> tuple[str, ...]:
    """Returns for each slot the part of the window: `fill`, `main`, `flush` or `update`.

    The pipeline fills until a first micro-batch comes out and flushes once the last one has gone
    in; with fewer micro-batches than the line has places there is no `main`.
    """
    entries, exits, updates = [0], [schedule.num_slots], [schedule.num_slots]
    exit_port = (
        (Kind.BACKWARD, 0) if schedule.is_training else (Kind.FORWARD, schedule.num_stages - 1)
    )
    for action, slot in schedule.slot_of.items():
        port = (action.kind, action.stage)
        if port == (Kind.FORWARD, 0):
            entries.append(slot)
        if port == exit_port:
            exits.append(slot)
        if action.kind is Kind.UPDATE:
            updates.append(slot)

    def part(slot: int) -> str:
        if slot >= min(updates):
            return "update"
        if slot > max(entries):
            return "flush"
        return "fill" if slot < min(exits) else "main"

    return tuple(part(slot) for slot in range(schedule.num_slots))


def _cell_text(cell: Cell) -> str:
    return "|".join(map(str, cell))


def _parse_cell(text: str) -> Cell:
    return tuple(map(parse_action, text.split("|"))) if text else ()


def _ipu_of_stage(rows: tuple[tuple[Cell, ...], ...]) -> tuple[int, ...]:
    ipus: dict[int, int] = {}
    for ipu, row in enumerate(rows):
        forwards = [a for cell in row for a in cell if a.kind is Kind.FORWARD]
        for action in forwards:
            if ipus.setdefault(action.stage, ipu) != ipu:
                raise ValueError(
                    f"Stage {action.stage} has forwards on IPU {ipus[action.stage]} and on IPU "
                    f"{ipu}: a stage lives on one IPU."
                )
    missing = sorted(set(range(1 + max(ipus, default=-1))) - ipus.keys())
    if missing:
        raise ValueError(f"Stages {missing} have no forward: every stage needs an IPU.")
    return tuple(ipus[stage] for stage in sorted(ipus))
