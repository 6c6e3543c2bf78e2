"""Pipeline schedules that PopTorch lacks, for `emulator.set_schedule`.

Each schedule fixes the number of stages of an IPU. Its table is created for a model's stages and
micro-batches when the model is compiled. `plan` creates it for other numbers, for display.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from poptorch_emu.config import TableConfig
from poptorch_emu.errors import make_error
from poptorch_emu.near_names import no_attribute
from poptorch_emu.printed.terminal import html_lines, shortened, terminal_width
from poptorch_emu.report.schedule_report import SchedulePlan
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
    """A schedule whose table has not been created for a model yet (exact)."""

    def __str__(self) -> str:
        """Returns the name and the number of stages on each IPU; for a custom schedule, the
        table."""
        if self.rows:
            lines = [", ".join(cell or "-" for cell in row) for row in self.rows]
            return "\n".join([f"{self.name}, {len(lines)} IPUs:", *map(_cut, lines)])
        stages = "1 stage" if self.stages_per_ipu == 1 else f"{self.stages_per_ipu} stages"
        return f"{self.name}, {stages} on each IPU; plan(num_ipus, num_micro_batches) shows it"

    def _repr_html_(self) -> str:
        """Returns the same text as HTML for a notebook."""
        return html_lines([str(self)])

    def plan(
        self, num_ipus: int = 0, num_micro_batches: int = 0, *, is_training: bool = True
    ) -> SchedulePlan:
        """Returns the table, which can be printed and drawn (exact).

        Args:
            num_ipus: number of IPUs of the pipeline; a custom table has its own number.
            num_micro_batches: number of micro-batches; a custom table has its own number.
            is_training: whether to include backward; inference has forwards only.

        Raises:
            Error: the schedule has no table for these numbers.
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
    """Returns 1F1B: forwards and backwards alternate, each as early as possible (exact)."""
    return PipelineSchedule("one_f_one_b")


def interleaved_1f1b(v: int = 2) -> PipelineSchedule:
    """Returns 1F1B with `v` stages on each IPU, as in Megatron (exact).

    Raises:
        ValueError: `v` is not a positive integer.
    """
    return _several("interleaved_1f1b", v)


def looped_bfs(v: int = 2) -> PipelineSchedule:
    """Returns the breadth-first pipeline: all forwards of a stage, then of the next one (exact).

    Raises:
        ValueError: `v`, the number of stages on each IPU, is not a positive integer.
    """
    return _several("looped_bfs", v)


def zero_bubble_h1(v: int = 1) -> PipelineSchedule:
    """Returns ZB-H1: gradients of weights fill bubbles (exact).

    A stage stashes as many micro-batches as with 1F1B, but holds the inputs of each gradient of
    weights until it is computed. A tile therefore holds more; `emulator.compare_schedules` shows
    how much.

    Raises:
        ValueError: `v`, the number of stages on each IPU, is not a positive integer.
    """
    return _several("zero_bubble_h1", v)


def zero_bubble_h2() -> PipelineSchedule:
    """Returns ZB-H2: no bubble within an IPU, with about twice the stash of 1F1B (exact)."""
    return PipelineSchedule("zero_bubble_h2")


def zero_bubble_v() -> PipelineSchedule:
    """Returns ZB-V: no bubble, with the stash of 1F1B and two stages on each IPU (exact)."""
    return PipelineSchedule("zero_bubble_v", 2)


def dualpipe_v() -> PipelineSchedule:
    """Returns DualPipe-V: a forward and a backward in each step, two stages on each IPU (exact)."""
    return PipelineSchedule("dualpipe_v", 2)


def from_table(
    rows: Iterable[Iterable[Any]], *, max_stash: int | None = None, link_depth: int | None = None
) -> PipelineSchedule:
    """Returns a custom schedule (exact).

    Args:
        rows: one row for each IPU, with its actions in order. `"1F0"` is the forward of stage 1 for
            micro-batch 0, and `B` its backward. In place of `B`, `I` computes the gradients that
            the stage before needs and `W` those of weights; `B` and `W` together mean the same as
            `I` and `W`. `R` recomputes activations. `"1F2|1B0"` are two actions in one step; `""`
            and `None` are pauses. Actions of PyTorch may replace text. An action waits until its
            inputs are ready.
        max_stash: number of micro-batches that each stage may hold until their backward is done.
        link_depth: number of micro-batches that may wait on a link between two IPUs.

    Raises:
        Error: the schedule is not legal; the message shows the grid with the place marked.

    Example:
        >>> schedule = emulator.schedules.from_table([["0F0", "0F1", "0B1", "0B0"]])
        >>> print(schedule.plan())
        slot   0     1     2     3     4
               ...
        IPU 0  0F0   0F1   0B1   0B0   0U0
        ...
    """
    text = tuple(
        tuple("" if cell is None else str(cell) for cell in row)  # `str` of PyTorch's actions fits.
        for row in rows
    )
    try:
        _check(read_table(text), max_stash, link_depth)
    except ValueError as fault:
        raise make_error(f"The table is no schedule: {fault}") from fault
    return PipelineSchedule(_OWN, rows=text)


def from_csv(path: str | Path) -> PipelineSchedule:
    """Returns the schedule in a file, by the rules of `from_table` (exact).

    A row is an IPU. Lines that start with `#` are comments. It reads files of a plan's `to_csv`,
    and files of PyTorch's schedules that hold computations only.

    Raises:
        Error: the schedule is not legal.
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


# Schedules that a name alone selects.
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
