"""Each strategy, compared with an independent rule and with its golden grid."""

from pathlib import Path

import pytest

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.csv_text import to_csv
from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.sequential import sequential

GOLDEN = Path(__file__).parents[2] / "golden"
SHAPES = [(1, 1), (1, 5), (2, 3), (3, 2), (4, 7), (4, 8)]
ALL_KINDS = pytest.mark.parametrize("kind", ScheduleKind, ids=lambda kind: kind.value)


def one_forward_one_backward(stage, num_micro_batches, num_warmup):
    """Returns the order of papers: warm-up forwards, then pairs, then the remaining backwards."""
    forwards = [Action(Kind.FORWARD, stage, m) for m in range(num_micro_batches)]
    backwards = [Action(Kind.BACKWARD, stage, m) for m in range(num_micro_batches)]
    order, forwards = forwards[:num_warmup], forwards[num_warmup:]
    for forward in forwards:
        order += [forward, backwards.pop(0)]
    return (*order, *backwards, Action(Kind.UPDATE, stage, 0))


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SHAPES)
def test_grouped_when_training_warms_up_with_twice_the_stages_to_come(
    num_stages, num_micro_batches
):
    schedule = grouped(tuple(range(num_stages)), num_micro_batches, True)
    for stage in range(num_stages):
        num_warmup = 2 * (num_stages - 1 - stage)
        expected = one_forward_one_backward(stage, num_micro_batches, num_warmup)
        assert schedule.actions(stage) == expected


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SHAPES)
def test_interleaved_when_training_warms_up_with_the_stages_to_come(num_stages, num_micro_batches):
    schedule = interleaved(tuple(range(num_stages)), num_micro_batches, True)
    for stage in range(num_stages):
        num_warmup = num_stages - 1 - stage
        expected = one_forward_one_backward(stage, num_micro_batches, num_warmup)
        assert schedule.actions(stage) == expected


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SHAPES)
def test_sequential_when_training_has_one_busy_ipu_in_each_slot(num_stages, num_micro_batches):
    schedule = sequential(tuple(range(num_stages)), num_micro_batches, True)
    busy = [sum(bool(row[t]) for row in schedule.rows) for t in range(schedule.num_slots)]
    assert busy == [1] * num_micro_batches * (2 * num_stages - 1) + [num_stages]


# Slots of N stages and M micro-batches: the published step counts, and one slot for the update.
@pytest.mark.parametrize(("n", "m"), [(2, 1), (2, 5), (4, 8), (5, 3)])
@pytest.mark.parametrize(
    ("strategy", "is_training", "num_slots"),
    [
        (grouped, True, lambda n, m: m + 2 * n - 2 + 1),
        (grouped, False, lambda n, m: m + n - 1),
        (interleaved, True, lambda n, m: 2 * m + 2 * n - 2 + 1),
        (interleaved, False, lambda n, m: m + n - 1),
        (sequential, True, lambda n, m: m * (2 * n - 1) + 1),
        (sequential, False, lambda n, m: m * n),
    ],
    ids=["grouped", "grouped-inference", "interleaved", "interleaved-inference",
         "sequential", "sequential-inference"],
)  # fmt: skip
def test_num_slots_when_laid_out_is_the_closed_formula(strategy, is_training, num_slots, n, m):
    assert strategy(tuple(range(n)), m, is_training).num_slots == num_slots(n, m)


def test_grouped_when_ipu_is_revisited_runs_its_stages_in_the_order_of_the_line():
    schedule = grouped((0, 1, 0), 3, True)
    assert [str(action) for action in schedule.rows[0][2]] == ["0F2", "2F0", "2B0"]
    assert [str(action) for action in schedule.rows[0][4]] == ["2F2", "2B2", "0B0"]


@pytest.mark.parametrize(
    "kind", [ScheduleKind.SHARDED, ScheduleKind.SERIAL_PHASED, ScheduleKind.PARALLEL_PHASED]
)
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
def test_make_schedule_when_nothing_overlaps_is_sequential(kind, is_training):
    stages = (0, 1, 0, 1)
    assert make_schedule(kind, stages, 3, is_training) == sequential(stages, 3, is_training)


@ALL_KINDS
def test_make_schedule_when_ipus_have_a_gap_raises(kind):
    with pytest.raises(ValueError, match="without a gap"):
        make_schedule(kind, (0, 2), 4, True)


@ALL_KINDS
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
def test_make_schedule_when_no_micro_batch_raises(kind, is_training):
    with pytest.raises(ValueError, match="num_micro_batches is 0"):
        make_schedule(kind, (0, 1), 0, is_training)


@pytest.mark.parametrize(
    ("name", "kind", "num_ipus", "num_micro_batches", "is_training"),
    [
        ("grouped_4x8", ScheduleKind.GROUPED, 4, 8, True),
        ("interleaved_4x8", ScheduleKind.INTERLEAVED, 4, 8, True),
        ("sharded_2x2", ScheduleKind.SHARDED, 2, 2, True),
        ("inference_4x8", ScheduleKind.GROUPED, 4, 8, False),
        ("interleaved_inference_4x8", ScheduleKind.INTERLEAVED, 4, 8, False),
        ("sequential_inference_2x2", ScheduleKind.SEQUENTIAL, 2, 2, False),
        ("serial_phased_inference_2x2", ScheduleKind.SERIAL_PHASED, 2, 2, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schedule_when_written_equals_its_golden(
    request, name, kind, num_ipus, num_micro_batches, is_training
):
    path = GOLDEN / f"schedule_{name}.csv"
    text = to_csv(make_schedule(kind, tuple(range(num_ipus)), num_micro_batches, is_training))
    lines = path.read_text().splitlines(keepends=True)
    header = "".join(line for line in lines if line.startswith("#"))
    if request.config.getoption("--update-golden", default=False):
        path.write_text(header + text)
    assert path.read_text() == header + text


@pytest.mark.parametrize(
    ("name", "kind", "ipu_of_stage", "num_micro_batches"),
    [
        ("sequential_2x2", ScheduleKind.SEQUENTIAL, (0, 1), 2),
        ("revisit_grouped_2x4", ScheduleKind.GROUPED, (0, 1, 0), 4),
        ("serial_phased_1x2", ScheduleKind.SERIAL_PHASED, (0, 0, 0), 2),
        ("parallel_phased_2x2", ScheduleKind.PARALLEL_PHASED, (0, 1, 0), 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schedule_when_stages_share_ipus_then_equals_its_golden(
    name, kind, ipu_of_stage, num_micro_batches
):
    lines = (GOLDEN / f"schedule_{name}.csv").read_text().splitlines(keepends=True)
    written = "".join(line for line in lines if not line.startswith("#"))
    assert to_csv(make_schedule(kind, ipu_of_stage, num_micro_batches, True)) == written
