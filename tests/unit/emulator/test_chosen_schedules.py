"""Schedules that users choose, write and read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from support.pytorch_tables import pytorch_rows
from torch.distributed.pipelining.schedules import _Action, _validate_schedule

import poptorch_emu as poptorch
from poptorch_emu import emulator

schedules = emulator.schedules


class Layers(torch.nn.Module):
    """Layers on IPUs 0, 1, 2, ..."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index):
                x = torch.tanh(layer(x))
                if index == len(self.layers) - 1:
                    return x, poptorch.identity_loss(x, "sum")
        raise AssertionError("there is a layer")


def compiled(schedule: object, num_stages: int = 4, num_micro_batches: int = 8):
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(num_micro_batches)
    options.setExecutionStrategy(poptorch.PipelinedExecution())
    emulator.set_schedule(options, schedule)
    model = Layers(num_stages)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(2 * num_micro_batches, 4))
    return training


def rows_of(plan: emulator.SchedulePlan) -> list[list[str]]:
    return [line.split(",") for line in plan.to_csv().splitlines()]


def test_plan_when_printed_then_has_grid_stashes_and_bubble() -> None:
    lines = str(schedules.one_f_one_b().plan(num_ipus=2, num_micro_batches=3)).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["slot", "0", "1", "2", "3", "4", "5", "6", "7", "8"],
        ["fill", "fill", "fill", "main", "main", "flush", "flush", "flush", "update"],
        ["IPU", "0", "0F0", "0F1", "0B0", "0F2", "0B1", "0B2", "0U0"],
        ["IPU", "1", "1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1U0"],
    ]
    assert lines[5:] == [
        "stage 0: IPU 0, stashes 2",
        "stage 1: IPU 1, stashes 1",
        "bubble: 25.0%, if a forward and each half of a backward take equally long",
    ]


def test_plan_of_a_v_then_tells_both_bubbles() -> None:
    plan = schedules.zero_bubble_v().plan(num_ipus=4, num_micro_batches=16)
    assert plan.grid.ipu_of_stage == (0, 1, 2, 3, 3, 2, 1, 0)
    assert plan.bubble == pytest.approx(3 / 99) and plan.bubble_within == 0
    assert "bubble: 3.0% (0.0% where no IPU waits for another one's update)" in str(plan)
    assert plan.bubble_by_cycles is None


def test_plan_in_inference_then_has_forwards_only() -> None:
    plan = schedules.interleaved_1f1b(2).plan(2, 4, is_training=False)
    assert not plan.grid.is_training
    assert [[text for text in row if text] for row in rows_of(plan)] == [
        ["0F0", "0F1", "2F0", "2F1", "0F2", "0F3", "2F2", "2F3"],
        ["1F0", "1F1", "3F0", "3F1", "1F2", "1F3", "3F2", "3F3"],
    ]


def test_schedule_of_a_model_then_tells_what_the_machine_would_take() -> None:
    training = compiled("zero_bubble_v")
    plan = emulator.schedule(training)
    assert plan.is_table and len(plan.ipu_ids) == 2
    text = str(plan)
    by_cycles = plan.bubble_by_cycles
    assert by_cycles is not None and 0 < by_cycles < 1
    assert f"bubble: {by_cycles:.1%}, by the cycles of the machine" in text
    tiles = emulator.tile_memory(training)
    for ipu in tiles.ipus:
        assert f"IPU {ipu.ipu}: {tiles.largest_bytes(ipu) / 1024:.0f} of 624 KiB of a tile" in text
    assert "stage 2: IPU 1, blocks layer2, stashes" in text


def test_names_then_stand_for_schedules() -> None:
    for name, make in schedules.NAMED.items():
        assert make().name == name
        assert compiled(name, 4).isCompiled()


def test_stages_then_are_where_the_table_says_whatever_the_blocks_do() -> None:
    grid = emulator.schedule(compiled(schedules.interleaved_1f1b(4), 8)).grid
    assert grid.ipu_of_stage == (0, 1) * 4
    grid = emulator.schedule(compiled(schedules.dualpipe_v(), 4)).grid
    assert grid.ipu_of_stage == (0, 1, 1, 0)


OWN = [["0F0", "0F1", "", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


def test_table_when_written_in_other_ways_then_is_the_same() -> None:
    expected = schedules.from_table(OWN).plan().grid
    with_update = [[*row, f"{ipu}U0"] for ipu, row in enumerate(OWN)]
    with_none = [[cell or None for cell in row] for row in OWN]
    of_papers = [[cell.replace("B", "BW") for cell in row] for row in OWN]
    spaced = [[f" {cell} " for cell in row] for row in OWN]
    of_pytorch = [[_Action.from_str(cell) for cell in row] for row in OWN]
    for rows in (with_update, with_none, of_papers, spaced, of_pytorch):
        assert schedules.from_table(rows).plan().grid == expected


def test_table_with_the_letters_of_papers_then_is_that_with_pytorchs() -> None:
    papers = [["0F0", "0F1", "0B0", "0W0", "0B1", "0W1"], ["1F0", "1BW0", "1F1", "1B1", "1W1"]]
    letters = [["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"], ["1F0", "1B0", "1F1", "1I1", "1W1"]]
    assert schedules.from_table(papers).plan().grid == schedules.from_table(letters).plan().grid


@pytest.mark.parametrize("kind", ["ScheduleDualPipeV", "ScheduleZBVZeroBubble"])
def test_csv_as_pytorch_writes_it_then_is_read(kind: str, tmp_path: Path) -> None:
    rows = pytorch_rows(kind, 2, 2, 6)
    path = tmp_path / "schedule.csv"
    path.write_text("# a comment\n" + "".join(",".join(row) + "\n" for row in rows))
    name = {"ScheduleDualPipeV": "dualpipe_v", "ScheduleZBVZeroBubble": "zero_bubble_v"}[kind]
    read, made = schedules.from_csv(path).plan(), schedules.NAMED[name]().plan(2, 6)
    for ipu in range(2):
        assert read.grid.actions(ipu) == made.grid.actions(ipu)


@pytest.mark.parametrize("name", schedules.NAMED)
def test_csv_for_pytorch_then_is_read_there_and_valid(name: str) -> None:
    plan = schedules.NAMED[name]().plan(num_ipus=4, num_micro_batches=8)
    lines = plan.to_pytorch_csv().splitlines()
    actions = {rank: list(map(_Action.from_str, row.split(","))) for rank, row in enumerate(lines)}
    ranks = _validate_schedule(actions, 4, plan.grid.num_stages, 8)
    assert tuple(ranks[stage] for stage in range(plan.grid.num_stages)) == plan.grid.ipu_of_stage
    assert schedules.from_table(line.split(",") for line in lines).plan().grid == plan.grid


def test_overlapped_actions_of_pytorch_then_are_one_step() -> None:
    table = [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]]
    rows = rows_of(schedules.from_table(table).plan())
    assert rows == [["0F0", "0F1|0B0", "0B1", "0U0"]]


def test_csv_that_a_plan_wrote_then_is_the_same_plan(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    for name, make in schedules.NAMED.items():
        plan = make().plan(2, 4)
        path.write_text(plan.to_csv())
        assert schedules.from_csv(path).plan().grid == plan.grid, name


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "It has no actions. Write a row for each IPU"),
        ([["0U0"], []], "It has no actions. Write a row for each IPU"),
        ([["0F0"], ["", "0X0"]], "IPU 1, step 1: '0X0' is not an action: .* such as '2F0'"),
        ([["0F0", "0B0", "0F1000000000"]], "has 0F1000000000, but only 3 actions in all"),
        ([["0F0", "0B0", "1000000000F0"]], "has 1000000000F0, but only 3 actions in all"),
        ([["0F0", "1F0"], ["1F1", "1B0"]], "Stage 1 has forwards on IPU 0 and on IPU 1"),
        ([["0F0", "0B0"], ["2F0", "2B0"]], r"Stages \[1\] have no forward"),
        ([["0F0", "0B0", "0B0"]], "IPU 0 runs 0B0 twice. .*leave one out"),
        ([["0F0", "0F1", "0B1"]], "IPU 0 never runs 0B0. .*add it to its row"),
        ([["0B0", "0F0"]], "IPUs wait for ever: IPU 0 before 0B0"),
        ([["0F0", "0B0"], ["1F0", "1B0", "0W0"]], "IPU 0 never runs 0I0|belongs to IPU 0"),
    ],
)
def test_table_when_illegal_then_the_error_says_why_and_shows_where(rows, message) -> None:
    with pytest.raises(poptorch.Error, match=f"(?s)The table is no schedule: .*({message})"):
        schedules.from_table(rows)


def test_table_when_it_holds_too_much_then_the_error_says_where() -> None:
    rows = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
    schedules.from_table(rows, max_stash=3, link_depth=2)
    with pytest.raises(poptorch.Error, match="Stage 0 holds 3 micro-batches after 0F2 but may st"):
        schedules.from_table(rows, max_stash=2)
    behind = [rows[0], ["1F0", "1F1", "1F2", "1B2", "1B1", "1B0"]]
    schedules.from_table(behind, link_depth=3)
    with pytest.raises(poptorch.Error, match="wait for ever: IPU 0 before 0B0, IPU 1 before 1B0"):
        schedules.from_table(behind, link_depth=2)


def test_illegal_table_then_shows_the_grid_with_the_place_marked() -> None:
    with pytest.raises(poptorch.Error) as error:
        schedules.from_table([["0F0", "0F1", "0B0", "0B1"], ["1F1", "1B1", "1B0", "1F0"]])
    problem, *grid = str(error.value).splitlines()
    assert "IPU 0 before 0B0, which needs 1B0, IPU 1 before 1B0, which needs 1F0." in problem
    assert problem.endswith("Move the needed action to the front.")
    assert grid == [
        "IPU 0: 0F0 0F1 >0B0< 0B1   0U0  <-- ERROR HERE",
        "IPU 1: 1F1 1B1 >1B0< >1F0< 1U0",
    ]


@pytest.mark.parametrize(
    ("schedule", "num_stages", "num_micro_batches", "message"),
    [
        (schedules.zero_bubble_v(), 3, 8, "2 stages on each IPU, but the model has 3"),
        (schedules.from_table(OWN), 3, 8, "table has 2 stages, but the model has 3"),
        (schedules.from_table(OWN), 2, 8, "table has 2 micro-batches, .* 8. Set Training.grad"),
        (schedules.dualpipe_v(), 4, 3, "needs at least as many micro-batches, but there are 3"),
        (schedules.interleaved_1f1b(2), 4, 5, "into 2 rounds of .* such as 6"),
        (schedules.from_table([["0F0", "0F1"]]), 1, 2, "IPU 0 never runs 0B0"),
    ],
)
def test_model_when_it_does_not_fit_the_schedule_then_the_error_says_what_would(
    schedule, num_stages: int, num_micro_batches: int, message: str
) -> None:
    with pytest.raises(poptorch.Error, match=f"(?s)The schedule does not fit: .*{message}"):
        compiled(schedule, num_stages, num_micro_batches)


@pytest.mark.parametrize("numbers", [(0, 4), (2, 0), (-1, 4), ()])
def test_plan_without_ipus_or_micro_batches_then_says_what_to_give(numbers) -> None:
    with pytest.raises(poptorch.Error, match=r"give at least 1 of each, as in plan\(num_ipus=4"):
        schedules.gpipe().plan(*numbers)


@pytest.mark.parametrize("v", [2.5, True, "2"])
def test_v_when_no_integer_then_is_refused(v) -> None:
    with pytest.raises(ValueError, match="give an integer from 1 on"):
        schedules.looped_bfs(v)


def test_v_below_one_then_is_refused() -> None:
    for make in (schedules.interleaved_1f1b, schedules.looped_bfs, schedules.zero_bubble_h1):
        with pytest.raises(ValueError, match="v is 0"):
            make(0)


def test_set_schedule_when_unknown_then_names_tables_too() -> None:
    with pytest.raises(poptorch.Error, match="'zb'.*grouped.*zero_bubble_h1.*emulator.schedules"):
        emulator.set_schedule(poptorch.Options(), "zb")


def test_set_schedule_when_called_again_then_the_last_one_counts() -> None:
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    emulator.set_schedule(options, "zero_bubble_v")
    emulator.set_schedule(options, "interleaved")
    model = Layers(2)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(16, 4))
    assert not emulator.schedule(training).is_table


class Plain(torch.nn.Module):
    """Layers without blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layers(x)
        return x, poptorch.identity_loss(x, "sum")


def test_autoplace_then_cuts_a_model_for_a_table_and_keeps_it() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    emulator.set_schedule(options, "zero_bubble_v")
    model = Plain()
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    batch = torch.randn(16, 8)
    report = emulator.compare_schedules(training, batch, num_ipus=4)
    assert report.best().num_stages in (4, 8)
    emulator.autoplace(training, batch, num_ipus=8)
    training(batch)
    grid = emulator.schedule(training).grid
    assert grid.ipu_of_stage == (0, 1, 2, 3, 3, 2, 1, 0)
    (candidate,) = [c for c in report.candidates if c.name == "zero_bubble_v"]
    assert candidate.throughput == emulator.estimate(training).throughput


def test_autoplace_by_blocks_then_keeps_the_schedule() -> None:
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(8)
    emulator.set_schedule(options, "zero_bubble_h1")
    model = Layers(6)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    emulator.autoplace(training, torch.randn(16, 4), num_ipus=2)
    training.compile(torch.randn(16, 4))
    assert emulator.schedule(training).is_table
    assert emulator.schedule(training).grid.num_stages == 2


def test_program_by_a_table_when_cached_then_is_read_whole(tmp_path: Path) -> None:
    batch = torch.randn(16, 4)
    results = []
    for _ in range(2):
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(8)
        options.enableExecutableCaching(str(tmp_path))
        emulator.set_schedule(options, "dualpipe_v")
        torch.manual_seed(3)
        model = Layers(4)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        training = poptorch.trainingModel(model, options, optimizer)
        loss = training(batch)[1]
        plan = emulator.schedule(training)
        results.append((loss.item(), str(plan), str(emulator.memory(training))))
    assert results[0] == results[1]
    assert len(list(tmp_path.glob("**/*"))) > 0


def test_another_table_then_is_another_program(tmp_path: Path) -> None:
    first = compiled(schedules.from_table([["0F0", "0F1", "0B0", "0B1"]]), 1, 2)
    first.compileAndExport(tmp_path / "f", torch.randn(4, 4), export_model=False)
    model = Layers(1)
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(2)
    emulator.set_schedule(options, schedules.from_table([["0F0", "0B0", "0F1", "0B1"]]))
    second = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(poptorch.Error, match="their options differ: 'strategy="):
        second.loadExecutable(tmp_path / "f")


def test_long_window_by_a_table_then_is_compiled_in_little_time() -> None:
    begin = time.process_time()
    training = compiled(schedules.zero_bubble_v(), 8, 512)
    assert emulator.schedule(training).grid.num_micro_batches == 512
    assert time.process_time() - begin < 20
