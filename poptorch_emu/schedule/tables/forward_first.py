"""All forwards, then all backwards: GPipe, and its form with several stages on each IPU.

Source: Huang et al., "GPipe" (arXiv 1811.06965); Lamy-Poirier, "Breadth-first pipeline parallelism"
(arXiv 2211.05953).
"""

from __future__ import annotations

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Cell


def gpipe(num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> list[list[Cell]]:
    """Returns the rows of GPipe, whose backwards come in the order of the forwards."""
    return _rows(num_ipus, stages_per_ipu, range(num_micro_batches), range(num_micro_batches))


def looped_bfs(num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> list[list[Cell]]:
    """Returns the rows of a breadth-first pipeline, whose backwards come in reverse order."""
    forwards = range(num_micro_batches)
    return _rows(num_ipus, stages_per_ipu, forwards, forwards[::-1])


def _rows(
    num_ipus: int, stages_per_ipu: int, forwards: range, backwards: range
) -> list[list[Cell]]:
    """Returns rows that let an IPU run all micro-batches of one stage, then of its next stage."""
    rows: list[list[Cell]] = []
    for ipu in range(num_ipus):
        stages = range(ipu, num_ipus * stages_per_ipu, num_ipus)
        up = [(Action(Kind.FORWARD, stage, m),) for stage in stages for m in forwards]
        down = [(Action(Kind.BACKWARD, stage, m),) for stage in stages[::-1] for m in backwards]
        rows.append([*up, *down])
    return rows
