"""ZB-V: two stages on each IPU in the shape of a V, and gradients of weights that fill the gaps.

The first IPU has the first and the last stage, so a micro-batch begins and ends there.
Source: Qi et al., "Zero bubble pipeline parallelism" (arXiv 2401.10241), section 6.
"""

from __future__ import annotations

from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Cell
from poptorch_emu.schedule.tables.row import Row


def zero_bubble_v(num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> list[list[Cell]]:
    """Returns the rows of ZB-V, with two stages on each IPU.

    The rows are built for enough micro-batches to fill the pipeline. Then the cells of the
    micro-batches that do not exist are removed.
    """
    count = max(2 * num_ipus - 1, num_micro_batches)
    rows = []
    for ipu in range(num_ipus):
        cells = _row(num_ipus, ipu, count).cells
        rows.append([cell for cell in cells if cell[0].micro_batch < num_micro_batches])
    return rows


def _row(num_ipus: int, ipu: int, count: int) -> Row:
    row, down, up = Row(), ipu, 2 * num_ipus - 1 - ipu
    hops = num_ipus - 1 - ipu
    row.forward(down, 2 * hops + 1)
    for _ in range(ipu):
        row.forward(up)
        row.forward(down)
    for _ in range(hops + 1):
        row.forward(up)
        _both_halves(row, up)
    while row.num_done(Kind.FORWARD, up) < count:
        if row.num_done(Kind.FORWARD, down) < count:
            row.forward(down)
        _both_halves(row, down)
        row.forward(up)
        _both_halves(row, up)
    for _ in range(ipu):
        row.inputs(down)
        row.inputs(up)
    for _ in range(hops + 1):
        row.inputs(down)
        row.weights(down)
    for stage in (up, down):
        while any(waits == stage for waits, _ in row.waiting):
            row.weights(stage)
    return row


def _both_halves(row: Row, stage: int) -> None:
    row.inputs(stage)
    row.weights(stage)
