"""The family of 1F1B schedules: some forwards, then one forward and one backward in turn.

Members of the family differ in the number of first forwards and in the delay of the gradients of
weights. Both numbers change by a constant from one IPU to the next. Source: Narayanan et al.,
"Efficient large-scale language model training" (arXiv 2104.04473), for 1F1B with several stages on
each IPU; Qi et al., "Zero bubble pipeline parallelism" (arXiv 2401.10241), for ZB-H1 and ZB-H2.
"""

from __future__ import annotations

from functools import partial

from poptorch_emu.schedule.schedule import Cell
from poptorch_emu.schedule.tables.row import Row


def one_f_one_b(
    num_ipus: int,
    stages_per_ipu: int,
    num_micro_batches: int,
    *,
    forwards_per_hop: int = 1,
    delay_per_hop: int | None = None,
) -> list[list[Cell]]:
    """Returns the rows of a schedule of this family.

    An IPU runs a round of micro-batches through one of its stages, then through its next stage.

    Args:
        num_ipus: number of IPUs.
        stages_per_ipu: number of stages on each IPU.
        num_micro_batches: number of micro-batches of the window.
        forwards_per_hop: number of first forwards of an IPU beyond those of the next IPU.
        delay_per_hop: number of backwards by which the gradients of weights wait longer than on the
            IPU before. `None` keeps each backward in one action.

    Raises:
        ValueError: an IPU has several stages, and the micro-batches cannot be divided into rounds
            of equal length.
    """
    round_length = _round_length(num_ipus, stages_per_ipu, num_micro_batches)
    count = stages_per_ipu * num_micro_batches
    rows = []
    for ipu in range(num_ipus):
        hops = num_ipus - 1 - ipu
        first = min((stages_per_ipu - 1) * round_length + forwards_per_hop * hops, count)
        turn = partial(_turn, num_ipus, stages_per_ipu, round_length)
        row = Row()
        for number in range(first):
            row.forward(ipu + turn(number))
        last = num_ipus * (stages_per_ipu - 1) + ipu
        for number in range(count):
            if first + number < count:
                row.forward(ipu + turn(first + number))
            stage = last - turn(number)
            if delay_per_hop is None:
                row.backward(stage)
                continue
            row.inputs(stage)
            if number >= delay_per_hop * ipu:
                row.weights()
        while row.waiting:
            row.weights()
        rows.append(row.cells)
    return rows


def _turn(num_ipus: int, stages_per_ipu: int, round_length: int, number: int) -> int:
    """Returns the stage of turn `number`, counted from the first stage of its IPU."""
    return number // round_length % stages_per_ipu * num_ipus


def _round_length(num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> int:
    num_rounds = max(1, num_micro_batches // num_ipus)
    if stages_per_ipu > 1 and num_micro_batches % num_rounds:
        multiple = -(-num_micro_batches // num_ipus) * num_ipus
        raise ValueError(
            f"{num_micro_batches} micro-batches cannot be divided into {num_rounds} rounds of "
            f"equal length over {num_ipus} IPUs with {stages_per_ipu} stages each. Use a multiple "
            f"of {num_ipus}, such as {multiple}, or one stage on each IPU."
        )
    return num_micro_batches // num_rounds
