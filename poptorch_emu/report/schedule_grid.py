"""A schedule as a table for people: a column for each slot, a row for each IPU."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.printed.text_table import to_table
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.csv_text import cell_text
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.transfers import Transfer, transfer_row


def to_grid(schedule: Schedule) -> str:
    """Returns a table with slot numbers, the parts of the window, and one row for each IPU."""
    rows = grid_rows(schedule)
    return "\n".join(to_table(rows, num_left=len(rows[0])))


def grid_rows(schedule: Schedule, transfers: Sequence[Transfer] = ()) -> list[list[str]]:
    """Returns the cells of `to_grid`; an IPU with overlapped transfers has a second row."""
    table = [["slot", *map(str, range(schedule.num_slots))], ["", *slot_parts(schedule)]]
    for ipu, row in enumerate(schedule.rows):
        table.append([f"IPU {ipu}", *map(cell_text, row)])
        crossing = transfer_row(schedule, ipu, transfers)
        if crossing is not None:
            table.append([f"IPU {ipu} I/O", *crossing])
    return table


def slot_parts(schedule: Schedule) -> tuple[str, ...]:
    """Returns the part of the window of each slot: `fill`, `main`, `flush` or `update`.

    The pipeline fills until the first micro-batch leaves it, and flushes after the last has
    entered. There is no `main` if all micro-batches enter before the first one leaves.
    """
    entries, exits, updates = [0], [schedule.num_slots], [schedule.num_slots]
    exit_stage = 0 if schedule.is_training else schedule.num_stages - 1
    exit_kind = [Kind.FORWARD, *schedule.kinds[exit_stage]][-1]
    for action, slot in schedule.slot_of.items():
        if action.kind is Kind.UPDATE:
            updates.append(slot)
        if (action.kind, action.stage) == (Kind.FORWARD, 0):
            entries.append(slot)
        if (exit_kind, exit_stage) in schedule.ports_of(action):
            exits.append(slot)

    def part(slot: int) -> str:
        if slot >= min(updates):
            return "update"
        if slot > max(entries):
            return "flush"
        return "fill" if slot < min(exits) else "main"

    return tuple(part(slot) for slot in range(schedule.num_slots))
