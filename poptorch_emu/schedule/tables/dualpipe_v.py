"""DualPipe-V: each IPU has one stage on the way down and one on the way up, run in one step.

A step runs the forward of one stage and the backward of the other, so that the transfers of one can
overlap with the compute of the other. Source: DeepSeek-AI, "DeepSeek-V3" (arXiv 2412.19437), folded
to a V.
"""

from __future__ import annotations

from poptorch_emu.schedule.schedule import Cell
from poptorch_emu.schedule.tables.row import Row


def dualpipe_v(num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> list[list[Cell]]:
    """Returns the rows of DualPipe-V, with two stages on each IPU.

    Raises:
        ValueError: `num_micro_batches` is smaller than the number of stages.
    """
    if num_micro_batches < 2 * num_ipus:
        raise ValueError(
            f"DualPipe-V has {2 * num_ipus} stages on {num_ipus} IPUs and needs at least as many "
            f"micro-batches, but there are {num_micro_batches}. Raise their number, or use "
            "zero_bubble_v."
        )
    return [_row(num_ipus, ipu, num_micro_batches) for ipu in range(num_ipus)]


def _row(num_ipus: int, ipu: int, count: int) -> list[Cell]:
    row, down, up = Row(), ipu, 2 * num_ipus - 1 - ipu
    hops = num_ipus - 1 - ipu
    row.forward(down, 2 * hops)
    for _ in range(ipu + 1):
        row.forward(down)
        row.forward(up)
    for _ in range(hops):
        row.inputs(up)
        row.weights()
        row.forward(up)
    for number in range(count - 2 * num_ipus + ipu + 1):
        if number == 0 and hops == 0:
            # The last IPU's first backward does not have to share a step with a forward.
            row.forward(down)
            row.backward(up)
        else:
            row.both(down, up)
        row.both(up, down)
    for _ in range(hops):
        row.backward(up)
        row.both(up, down)
    _drain(row, down, up, ipu, hops)
    return row.cells


def _drain(row: Row, down: int, up: int, ipu: int, hops: int) -> None:
    """Adds the last backwards. In their second half the gradients of weights are delayed."""
    for number in range(2 * ipu + 2):
        add = row.inputs if number > ipu else row.backward
        add(down if number % 2 else up)
    for _ in range(hops):
        row.weights()
        row.inputs(down)
    for _ in range(ipu + 1):
        row.weights()
