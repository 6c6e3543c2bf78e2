"""The named tables, compared with PyTorch's and with closed formulas of the literature."""

from __future__ import annotations

import pytest
from support.pytorch_tables import pytorch_rows

from poptorch_emu.config import TableConfig
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.free_run import free_run
from poptorch_emu.schedule.legality import check
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.stash import stash_depths
from poptorch_emu.schedule.tables.named import TABLES, make_table

RANKS = (2, 4, 8)
MICRO_BATCHES = range(4, 33)
CLASSES = {
    "gpipe": ("ScheduleGPipe", (1,)),
    "one_f_one_b": ("Schedule1F1B", (1,)),
    "looped_bfs": ("ScheduleLoopedBFS", (1, 2, 3)),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", (2, 3)),
    "zero_bubble_h1": ("ScheduleInterleavedZeroBubble", (1, 2, 3)),
    "zero_bubble_v": ("ScheduleZBVZeroBubble", (2,)),
    "dualpipe_v": ("ScheduleDualPipeV", (2,)),
}
ROUNDS = ("interleaved_1f1b", "zero_bubble_h1")


def made(name: str, num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> Schedule:
    table = TableConfig(name, stages_per_ipu)
    return make_table(table, num_ipus * stages_per_ipu, num_micro_batches, True)


def has_table(name: str, num_ipus: int, stages_per_ipu: int, num_micro_batches: int) -> bool:
    """Returns whether PyTorch has the schedule for these numbers."""
    if name in ROUNDS:
        return num_micro_batches % max(1, num_micro_batches // num_ipus) == 0
    if name == "one_f_one_b":
        return num_micro_batches >= num_ipus
    return name != "dualpipe_v" or num_micro_batches >= 2 * num_ipus


def rows_of(schedule: Schedule) -> list[list[str]]:
    """Returns the actions of each IPU as text."""
    return [
        [str(action) for action in schedule.actions(ipu) if action.kind is not Kind.UPDATE]
        for ipu in range(schedule.num_ipus)
    ]


def counted_from_one(row: list[str]) -> list[str]:
    """Returns a row with the numbers of the forwards' micro-batches increased by one."""
    halves = (action.partition("F") for action in row)
    return [f"{s}F{int(m) + 1}" if letter else s for s, letter, m in halves]


@pytest.mark.feature("emulator.schedules", fidelity="exact")
@pytest.mark.parametrize("num_ipus", RANKS)
@pytest.mark.parametrize("name", CLASSES)
def test_table_then_is_pytorchs_action_by_action(name: str, num_ipus: int) -> None:
    kind, all_per_ipu = CLASSES[name]
    compared = 0
    for stages_per_ipu in all_per_ipu:
        for num_micro_batches in MICRO_BATCHES:
            shape = num_ipus, stages_per_ipu, num_micro_batches
            if not has_table(name, *shape):
                continue
            expected, found = pytorch_rows(kind, *shape), rows_of(made(name, *shape))
            if name == "one_f_one_b":
                # PyTorch's table counts micro-batches of the last rank from 1, although its runtime
                # does not.
                found[-1] = counted_from_one(found[-1])
            assert found == expected, shape
            compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("num_ipus", "num_micro_batches"), [(1, 4), (2, 4), (3, 6), (4, 8)])
def test_table_then_is_legal_with_its_order_in_inference(
    name: str, num_ipus: int, num_micro_batches: int
) -> None:
    per_ipu = TABLES[name].stages_per_ipu or 2
    schedule = made(name, num_ipus, per_ipu, num_micro_batches)
    check(schedule, max_stash=stash_depths(schedule))
    table = TableConfig(name, per_ipu)
    inference = make_table(table, num_ipus * per_ipu, num_micro_batches, False)
    check(inference)
    for mine, trained in zip(rows_of(inference), rows_of(schedule), strict=True):
        assert mine == [action for action in trained if "F" in action]


# With forwards and halves of backwards of equal length. Source: the papers that the files of the
# schedules name.
@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("m", [8, 16, 32])
def test_bubble_when_costs_are_equal_then_is_the_closed_formula(p: int, m: int) -> None:
    m = max(m, 2 * p)
    ramp = p - 1

    def end(name: str, per_ipu: int = 1) -> float:
        return free_run(made(name, p, per_ipu, m)).end / per_ipu

    for name in ("gpipe", "one_f_one_b"):
        assert end(name) == 3 * (m + ramp)
        assert free_run(made(name, p, 1, m)).bubble == pytest.approx(ramp / (m + ramp))
    for per_ipu in (2, 4):
        for name in ("interleaved_1f1b", "looped_bfs"):
            assert end(name, per_ipu) == 3 * (m + ramp / per_ipu)
    assert end("zero_bubble_h1") == 3 * m + ramp  # A third of 3 * ramp.
    assert free_run(made("zero_bubble_h2", p, 1, m)).bubble_within == 0
    assert free_run(made("zero_bubble_v", p, 2, m)).bubble_within == 0
    assert end("zero_bubble_v", 2) == 3 * m + ramp / 2


# Micro-batches that an IPU holds at most, in those of all its stages. Source: Qi et al. (arXiv
# 2401.10241), table 2, for the zero bubbles; the others follow in the same way.
@pytest.mark.parametrize(
    ("name", "per_ipu", "held"),
    [
        ("gpipe", 1, lambda p, m: m),
        ("one_f_one_b", 1, lambda p, m: p),
        ("zero_bubble_h1", 1, lambda p, m: p),
        ("zero_bubble_h2", 1, lambda p, m: 2 * p - 1),
        ("zero_bubble_v", 2, lambda p, m: p + 0.5),
        ("looped_bfs", 2, lambda p, m: m),
    ],
)
def test_stash_of_the_first_ipu_then_is_the_published_one(name, per_ipu, held) -> None:
    for p in RANKS:
        schedule = made(name, p, per_ipu, 32)
        depths = zip(schedule.ipu_of_stage, stash_depths(schedule), strict=True)
        assert sum(depth for ipu, depth in depths if ipu == 0) / per_ipu == held(p, 32)


@pytest.mark.parametrize(
    ("table", "num_stages", "num_micro_batches", "message"),
    [
        (TableConfig("zero_bubble_v", 2), 5, 8, "2 stages on each IPU, but the model has 5"),
        (
            TableConfig("interleaved_1f1b", 2),
            8,
            9,
            "9 micro-batches cannot be divided into 2 rounds.*such as 12",
        ),
        (TableConfig("dualpipe_v", 2), 8, 7, "8 stages on 4 IPUs .* but there are 7"),
    ],
)
def test_table_when_numbers_do_not_fit_then_says_what_would(
    table: TableConfig, num_stages: int, num_micro_batches: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_table(table, num_stages, num_micro_batches, True)
