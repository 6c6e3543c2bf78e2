"""Schedules of pipelines that PopTorch has none of, for `emulator.set_schedule`.

Each knows how many stages an IPU has, and is made for a model's stages and micro-batches when the
model is compiled. `plan` makes it for other numbers, to be looked at.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from poptorch_emu.config import TableConfig
from poptorch_emu.errors import make_error
from poptorch_emu.near_names import no_attribute
from poptorch_emu.report.schedule_report import SchedulePlan
from poptorch_emu.report.terminal import html_lines, shortened, terminal_width
from poptorch_emu.schedule.legality import check
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.tables.named import make_table
from poptorch_emu.schedule.tables.own import read_table

__all__ = [
    "PipelineSchedule",
    "dualpipe_v",
    "from_csv",
    "from_table",
    "gpipe",
    "interleaved_1f1b",
    "looped_bfs",
    "one_f_one_b",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
]

_OWN = "own table"


class PipelineSchedule(TableConfig):
    """A schedule that is not yet made for a model (exact)."""

    def __str__(self) -> str:
        """Returns its name, and how many stages an IPU has; of one's own, the table."""
        if self.rows:
            lines = [", ".join(cell or "-" for cell in row) for row in self.rows]
            return "\n".join([f"{self.name}, {len(lines)} IPUs:", *map(_cut, lines)])
        stages = "1 stage" if self.stages_per_ipu == 1 else f"{self.stages_per_ipu} stages"
        return f"{self.name}, {stages} on each IPU; plan(num_ipus, num_micro_batches) shows it"

    def _repr_html_(self) -> str:
        """Returns the same for a notebook."""
        return html_lines([str(self)])

    def plan(
        self, num_ipus: int = 0, num_micro_batches: int = 0, *, is_training: bool = True
    ) -> SchedulePlan:
        """Returns the table, to be printed and drawn (exact).

        Args:
            num_ipus: of a pipeline; a table of one's own has its number.
            num_micro_batches: likewise.
            is_training: in inference only the forwards are left.

        Raises:
            Error: the schedule has no such form.
        """
        num_stages = num_ipus * self.stages_per_ipu
        if self.rows:
            own = read_table(self.rows)
            num_stages, num_micro_batches = own.num_stages, own.num_micro_batches
            is_training = is_training and own.is_training
        elif num_ipus < 1 or num_micro_batches < 1:
            raise make_error(
                f"A plan of {self.name} has {num_ipus} IPUs and {num_micro_batches} micro-batches: "
                "give at least 1 of each, as in plan(num_ipus=4, num_micro_batches=8)."
            )
        try:
            grid = make_table(self, num_stages, num_micro_batches, is_training)
        except ValueError as fault:
            raise make_error(str(fault)) from fault
        return SchedulePlan(grid, tuple(range(grid.num_ipus)), is_table=True)


def gpipe() -> PipelineSchedule:
    """Returns GPipe: all forwards, then all backwards (exact)."""
    return PipelineSchedule("gpipe")


def one_f_one_b() -> PipelineSchedule:
    """Returns 1F1B: forwards and backwards in turn, as early as they can (exact)."""
    return PipelineSchedule("one_f_one_b")


def interleaved_1f1b(v: int = 2) -> PipelineSchedule:
    """Returns 1F1B with `v` stages on each IPU, as Megatron has it (exact).

    Raises:
        ValueError: `v` is no integer from 1 on.
    """
    return _several("interleaved_1f1b", v)


def looped_bfs(v: int = 2) -> PipelineSchedule:
    """Returns the breadth-first pipeline: all forwards of a stage, then of the next (exact).

    Raises:
        ValueError: `v`, the number of stages on each IPU, is no integer from 1 on.
    """
    return _several("looped_bfs", v)


def zero_bubble_h1(v: int = 1) -> PipelineSchedule:
    """Returns ZB-H1: gradients of weights fill bubbles (exact).

    A stage stashes as many micro-batches as with 1F1B, but holds what a gradient of weights needs
    until it is computed, so that a tile holds more: `emulator.compare_schedules` says how much.

    Raises:
        ValueError: `v`, the number of stages on each IPU, is no integer from 1 on.
    """
    return _several("zero_bubble_h1", v)


def zero_bubble_h2() -> PipelineSchedule:
    """Returns ZB-H2: no bubble within an IPU, with about twice the stashes of 1F1B (exact)."""
    return PipelineSchedule("zero_bubble_h2")


def zero_bubble_v() -> PipelineSchedule:
    """Returns ZB-V: no bubble with the stashes of 1F1B, and two stages on each IPU (exact)."""
    return PipelineSchedule("zero_bubble_v", 2)


def dualpipe_v() -> PipelineSchedule:
    """Returns DualPipe-V: a forward and a backward in each step, two stages on each IPU (exact)."""
    return PipelineSchedule("dualpipe_v", 2)


def from_table(
    rows: Iterable[Iterable[Any]], *, max_stash: int | None = None, link_depth: int | None = None
) -> PipelineSchedule:
    """Returns a schedule of one's own (exact).

    Args:
        rows: one for each IPU, with what it does in order. `"1F0"` is the forward of stage 1 for
            micro-batch 0, `B` its backward; or `I` the gradients that the stage before needs and
            `W` those of weights, for which `B` and `W` may be written, too; `R` computes
            activations again. `"1F2|1B0"` are two in one step; `""` and `None` are pauses. Actions
            of PyTorch may stand for text. What comes too early waits for what it needs.
        max_stash: how many micro-batches each stage may hold until their backward is done.
        link_depth: how many micro-batches may wait from one IPU to another.

    Raises:
        Error: it is not legal; the text has the grid with the place marked.

    Example:
        >>> schedule = emulator.schedules.from_table([["0F0", "0F1", "0B1", "0B0"]])
        >>> print(schedule.plan())
        slot   0     1     2     3     4
               ...
        IPU 0  0F0   0F1   0B1   0B0   0U0
        ...
    """
    text = tuple(
        tuple("" if cell is None else str(cell) for cell in row)  # PyTorch's actions print so.
        for row in rows
    )
    try:
        _check(read_table(text), max_stash, link_depth)
    except ValueError as fault:
        raise make_error(f"The table is no schedule: {fault}") from fault
    return PipelineSchedule(_OWN, rows=text)


def from_csv(path: str | Path) -> PipelineSchedule:
    """Returns the schedule in a file, by the rules of `from_table` (exact).

    A row is an IPU. Lines that start with `#` are comments. It reads what `to_csv` of a plan
    writes, and what PyTorch's schedules write for computations alone.

    Raises:
        Error: it is not legal.
    """
    lines = Path(path).read_text().splitlines()
    return from_table(csv.reader(line for line in lines if not line.startswith("#")))


def _cut(line: str) -> str:
    return shortened(line, terminal_width())


def _check(schedule: Schedule, max_stash: int | None, link_depth: int | None) -> None:
    stashes = None if max_stash is None else [max_stash] * schedule.num_stages
    ipu_of = schedule.ipu_of_stage
    depths = {
        link: link_depth
        for link in schedule.links
        if link_depth is not None and ipu_of[link[0][1]] != ipu_of[link[1][1]]
    }
    check(schedule, stashes, depths)


# Those that are known by their names alone.
NAMED: dict[str, Callable[[], PipelineSchedule]] = {
    make.__name__: make
    for make in (
        gpipe,
        one_f_one_b,
        interleaved_1f1b,
        looped_bfs,
        zero_bubble_h1,
        zero_bubble_h2,
        zero_bubble_v,
        dualpipe_v,
    )
}


def _several(name: str, stages_per_ipu: int) -> PipelineSchedule:
    is_integer = isinstance(stages_per_ipu, int) and not isinstance(stages_per_ipu, bool)
    if not is_integer or stages_per_ipu < 1:
        raise ValueError(
            f"v is {stages_per_ipu!r}, but it is the number of stages on each IPU: give an integer "
            "from 1 on."
        )
    return PipelineSchedule(name, stages_per_ipu)


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, (*NAMED, "from_table", "from_csv"))
