"""All tables by name: builds a schedule from a name, stages, micro-batches and the mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from poptorch_emu.config import TableConfig
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Cell, Schedule
from poptorch_emu.schedule.steps import filled, with_waits
from poptorch_emu.schedule.tables.dualpipe_v import dualpipe_v
from poptorch_emu.schedule.tables.forward_first import gpipe, looped_bfs
from poptorch_emu.schedule.tables.one_f_one_b import one_f_one_b
from poptorch_emu.schedule.tables.own import read_table
from poptorch_emu.schedule.tables.placements import looped, v_shaped
from poptorch_emu.schedule.tables.zero_bubble_v import zero_bubble_v


@dataclass(frozen=True)
class TableRule:
    """The rule that builds the table of a name.

    Attributes:
        rows: function of the number of IPUs, the stages on each, and the micro-batches that returns
            the rows.
        stages_per_ipu: number of stages on each IPU; `None` allows any number.
        place: function that returns the IPU of each stage.
    """

    rows: Callable[[int, int, int], Sequence[Sequence[Cell]]]
    stages_per_ipu: int | None = 1
    place: Callable[[int, int], tuple[int, ...]] = looped


TABLES = {
    "gpipe": TableRule(gpipe),
    "one_f_one_b": TableRule(one_f_one_b),
    "interleaved_1f1b": TableRule(partial(one_f_one_b, forwards_per_hop=2), None),
    "looped_bfs": TableRule(looped_bfs, None),
    "zero_bubble_h1": TableRule(partial(one_f_one_b, delay_per_hop=1), None),
    "zero_bubble_h2": TableRule(partial(one_f_one_b, forwards_per_hop=2, delay_per_hop=2)),
    "zero_bubble_v": TableRule(zero_bubble_v, 2, v_shaped),
    "dualpipe_v": TableRule(dualpipe_v, 2, v_shaped),
}


def named_table(name: str) -> TableConfig:
    """Returns the schedule of a name, with the least number of stages that makes its form."""
    least = 2 if name in ("interleaved_1f1b", "looped_bfs") else 1
    return TableConfig(name, TABLES[name].stages_per_ipu or least)


def num_stages_on(table: TableConfig, num_ipus: int) -> int:
    """Returns the number of stages of a table on `num_ipus` IPUs; a user's table fixes its own."""
    return (
        len(read_table(table.rows).ipu_of_stage)
        if table.rows
        else (num_ipus * table.stages_per_ipu)
    )


def placement(table: TableConfig, num_stages: int) -> tuple[int, ...]:
    """Returns the IPU of each stage of a model.

    Raises:
        ValueError: `num_stages` differs from the stages of the table, or is not a multiple of its
            stages on each IPU.
    """
    if table.rows:
        ipu_of_stage = read_table(table.rows).ipu_of_stage
        if len(ipu_of_stage) != num_stages:
            raise ValueError(
                f"The table has {len(ipu_of_stage)} stages, but the model has {num_stages}. Cut "
                "the model into as many with blocks, or write a table for it."
            )
        return ipu_of_stage
    num_ipus, rest = divmod(num_stages, table.stages_per_ipu)
    if rest or not num_ipus:
        raise ValueError(
            f"{table.name} has {table.stages_per_ipu} stages on each IPU, but the model has "
            f"{num_stages} in all. Cut it into a multiple of {table.stages_per_ipu} with blocks."
        )
    return TABLES[table.name].place(num_ipus, table.stages_per_ipu)


# Plans of one model ask for the same tables many times.
@lru_cache(maxsize=128)
def make_table(
    table: TableConfig, num_stages: int, num_micro_batches: int, is_training: bool
) -> Schedule:
    """Returns the schedule of one window.

    Args:
        table: name or rows of the schedule.
        num_stages: number of stages of the model.
        num_micro_batches: gradient accumulation in training, device iterations in inference.
        is_training: whether the schedule trains. Inference keeps the forwards in the same order.

    Raises:
        ValueError: `num_stages` or `num_micro_batches` does not suit the table.
        ScheduleError: the user's own table is not legal.
    """
    rows: Sequence[Sequence[Cell]]
    ipu_of_stage = placement(table, num_stages)
    if table.rows:
        own = read_table(table.rows)
        if own.num_micro_batches != num_micro_batches:
            raise ValueError(
                f"The table has {own.num_micro_batches} micro-batches, but the options ask for "
                f"{num_micro_batches}. Set Training.gradientAccumulation (deviceIterations in "
                "inference) to the same number, or write a table for it."
            )
        if own.is_training == is_training:
            return own
        rows = own.rows
    else:
        num_ipus = num_stages // table.stages_per_ipu
        rows = TABLES[table.name].rows(num_ipus, table.stages_per_ipu, num_micro_batches)
    if not is_training:
        rows = [list(filter(None, map(_forwards, row))) for row in rows]
    rows = filled(rows, is_training)
    return with_waits(Schedule(ipu_of_stage, num_micro_batches, is_training, rows))


def _forwards(cell: Cell) -> Cell:
    return tuple(action for action in cell if action.kind is Kind.FORWARD)
