"""All schedules of a model side by side; each figure equals that of a compiled model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.compile import planner
from poptorch_emu.plan.operations.operation_cost import OperationCosts

schedules = emulator.schedules
WIDTH = 96
TRIED = ("grouped", "interleaved", "sequential", *schedules.NAMED)


class Layers(torch.nn.Module):
    """Equal layers, each in a block, on as many IPUs as there are stages."""

    def __init__(self, num_stages: int, layers_per_stage: int = 1) -> None:
        super().__init__()
        count = num_stages * layers_per_stage
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)])
        self.per_stage = layers_per_stage

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            stage = index // self.per_stage
            with poptorch.Block(f"layer{index}", ipu_id=stage):
                x = torch.tanh(layer(x))
                if index == len(self.layers) - 1:
                    return x, poptorch.identity_loss(x, "sum")
        raise AssertionError("there is a layer")


def wrapped(num_stages: int, num_micro_batches: int, schedule=None, layers_per_stage: int = 1):
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(num_micro_batches)
    options.setExecutionStrategy(poptorch.PipelinedExecution())
    if schedule is not None:
        emulator.set_schedule(options, schedule)
    model = Layers(num_stages, layers_per_stage)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer)


def batch(num_micro_batches: int) -> torch.Tensor:
    return torch.empty(4 * num_micro_batches, WIDTH, device="meta")


@pytest.mark.feature("emulator.compare_schedules", fidelity="modelled")
@pytest.mark.parametrize(("num_stages", "num_ipus"), [(4, 4), (8, 4)])
def test_candidates_then_are_what_compiling_by_the_schedule_gives(
    num_stages: int, num_ipus: int
) -> None:
    micro_batches = 16
    report = emulator.compare_schedules(
        wrapped(num_stages, micro_batches), batch(micro_batches), num_ipus=num_ipus
    )
    assert {candidate.name for candidate in report.candidates} == set(TRIED)
    compared = 0
    for candidate in report.candidates:
        if candidate.num_stages != num_stages:
            continue  # The model was cut into other stages.
        training = wrapped(num_stages, micro_batches, candidate.name)
        estimate = emulator.estimate(training, batch(micro_batches))
        assert candidate.throughput == estimate.throughput
        training.compile(torch.randn(4 * micro_batches, WIDTH))
        tiles, plan = emulator.tile_memory(training), emulator.schedule(training)
        assert candidate.tile_bytes == max(map(tiles.largest_bytes, tiles.ipus))
        assert candidate.fits == "yes"
        if plan.is_table:
            assert candidate.bubble == pytest.approx(plan.bubble)
            assert candidate.bubble_by_cycles == pytest.approx(plan.bubble_by_cycles)
        training.destroy()
        compared += 1
    assert compared == (7 if num_stages == num_ipus else 4)


def test_bubbles_then_are_those_of_the_formulas() -> None:
    p, m = 4, 16
    report = emulator.compare_schedules(wrapped(p, m, layers_per_stage=4), batch(m))
    found = {candidate.name: candidate for candidate in report.candidates}
    formulas = {
        "sequential": 1 - 1 / p,
        "grouped": 2 * (p - 1) / (m + 2 * (p - 1)),
        "gpipe": (p - 1) / (m + p - 1),
        "one_f_one_b": (p - 1) / (m + p - 1),
        "interleaved_1f1b": (p - 1) / (2 * m + p - 1),
        "zero_bubble_h1": (p - 1) / (3 * m + p - 1),
    }
    for name, bubble in formulas.items():
        assert found[name].bubble == pytest.approx(bubble), name
    assert found["zero_bubble_v"].bubble < found["zero_bubble_h1"].bubble
    assert found["gpipe"].most_stashed == m and found["one_f_one_b"].most_stashed == p
    # Schedules with two stages on each IPU cut the layers into twice as many stages.
    assert {name: c.num_stages for name, c in found.items() if c.num_stages != p} == dict.fromkeys(
        ("interleaved_1f1b", "looped_bfs", "zero_bubble_v", "dualpipe_v"), 2 * p
    )


def test_candidates_then_are_sorted_and_the_best_fits() -> None:
    report = emulator.compare_schedules(wrapped(4, 16, layers_per_stage=2), batch(16))
    speeds = [candidate.throughput for candidate in report.candidates]
    assert speeds == sorted(speeds, reverse=True)
    assert report.best() == report.candidates[0]
    lines = str(report).splitlines()
    assert lines[0].split() == [
        "schedule", "stages", "bubble", "by", "cycles", "rows/s", "likely", "stash", "KiB", "fits",
    ]  # fmt: skip
    best = report.best().speed
    assert lines[1].split()[5] == f"±{best.interval[1] / best.value - 1:.0%}"
    assert [line.split()[0] for line in lines[1:12]] == [c.name for c in report.candidates]
    assert lines[12].startswith(f"4 IPUs of {report.system}, 16 micro-batches")
    assert "<table" in report._repr_html_() and "zero_bubble_v" in report._repr_html_()


def test_schedules_that_do_not_fit_then_come_last_and_say_why() -> None:
    report = emulator.compare_schedules(wrapped(4, 5), batch(5))
    failed = {c.name: c.problem for c in report.candidates if c.problem}
    assert set(failed) >= {"grouped", "dualpipe_v", "zero_bubble_v"}
    assert "gradientAccumulation must be greater than or equal" in failed["grouped"]
    assert "4 units cannot be cut into 8 stages" in failed["zero_bubble_v"]
    names = [candidate.name for candidate in report.candidates]
    assert set(names[-len(failed) :]) == set(failed)
    assert "zero_bubble_v: " in str(report)


def test_own_schedule_then_stands_among_the_others() -> None:
    rows = [[f"{s}{letter}{m}" for letter in "FB" for m in range(4)] for s in range(2)]
    own = {"mine": schedules.from_table(rows)}
    report = emulator.compare_schedules(wrapped(2, 4), batch(4), own=own)
    found = {candidate.name: candidate for candidate in report.candidates}
    assert found["mine"].bubble == found["gpipe"].bubble
    assert found["mine"].throughput == found["gpipe"].throughput


def test_model_on_one_ipu_then_needs_a_number() -> None:
    with pytest.raises(poptorch.Error, match="schedule of 1 IPU has nothing to compare.*num_ipus="):
        emulator.compare_schedules(wrapped(1, 4, layers_per_stage=4), batch(4))
    report = emulator.compare_schedules(wrapped(1, 4, layers_per_stage=4), batch(4), num_ipus=2)
    assert report.best().num_stages in (2, 4)


def test_comparison_when_none_fits_then_says_so() -> None:
    report = emulator.compare_schedules(wrapped(2, 4), batch(4))
    none = type(report)(
        tuple(type(c)(c.name, c.num_stages, problem="no") for c in report.candidates), 2, 4, ""
    )
    with pytest.raises(ValueError, match="No choice fits. Recompute"):
        none.best()


def test_picture_then_has_a_point_for_each_schedule() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    report = emulator.compare_schedules(wrapped(4, 16, layers_per_stage=2), batch(16))
    axes = report.plot()
    points = {tuple(line.get_xydata()[0]) for line in axes.lines}
    assert points == {(c.bubble_by_cycles, c.tile_bytes / 1024) for c in report.candidates}
    assert {text.get_text() for text in axes.texts} == set(TRIED)
    pyplot.close(axes.figure)


def counted(monkeypatch: pytest.MonkeyPatch, home: Any, name: str) -> list[Any]:
    """Returns a list that receives the arguments of each call of a function."""
    calls, function = [], getattr(home, name)

    def called(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return function(*given, **named)

    monkeypatch.setattr(home, name, called)
    return calls


class Encoder(torch.nn.Module):
    """Twelve layers on eight IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12)]
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index * 8 // 12):
                x = layer(x)
                if index == len(self.layers) - 1:
                    return x, poptorch.identity_loss(x, "sum")
        raise AssertionError("there is a layer")


def test_comparison_of_twelve_layers_on_eight_ipus_then_shares_equal_code(monkeypatch) -> None:
    with torch.device("meta"):
        model = Encoder()
    options = poptorch.Options()
    options.Training.gradientAccumulation(32)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    codes = counted(monkeypatch, planner, "take_inventory")
    cuts = counted(monkeypatch, planner, "split_into")
    costs = counted(monkeypatch, OperationCosts, "_of")
    report = emulator.compare_schedules(training, torch.empty(32, 128, 768, device="meta"))
    assert len(report.candidates) == len(TRIED)
    assert not any(candidate.problem for candidate in report.candidates)
    # There is code for 8 and for 16 stages, each with a whole backward or with its two halves.
    assert len(codes) <= 4 and len(cuts) == 1
    assert len(costs) == len({node for _, node in costs})
