"""The laboratory's plans equal those of other functions, and it refuses impossible settings."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.compile.settings import SCHEDULES
from poptorch_emu.emulator.lab_points import choices_near
from poptorch_emu.report.page.lab_view import unpacked

pytestmark = pytest.mark.feature("emulator.lab", fidelity="modelled")

ROWS, WIDTH = 4, 32


class Stages(torch.nn.Module):
    """Two layers, each on an IPU of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            with poptorch.Block(f"block{ipu}", ipu_id=ipu):
                x = torch.relu(layer(x))
                if ipu == 1:
                    return x, torch.nn.functional.mse_loss(x, y)
        raise AssertionError("the last block returns")


def wrapped(
    accumulation: int = 4, replicas: int = 1, schedule: str = "grouped"
) -> tuple[Any, torch.Tensor]:
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    emulator.set_schedule(options, schedule)
    module = Stages()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    inputs = torch.randn(2, ROWS * accumulation * replicas, WIDTH)
    return poptorch.trainingModel(module, options, optimizer), inputs


@pytest.fixture
def few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits the usual settings to those in which one value differs from the start."""
    laboratory = importlib.import_module("poptorch_emu.emulator.lab")
    monkeypatch.setattr(laboratory, "_USUAL_PLANS", 60)
    monkeypatch.setattr(laboratory, "_FREE", ())


def bench_of(path: Path) -> dict[str, Any]:
    """Returns the only bench of a page, with its points in order."""
    _, _, rest = path.read_text(encoding="utf-8").partition('id="report-data">')
    (bench,) = json.loads(rest.partition("</script>")[0])["benches"]
    return {**bench, "points": list(unpacked(bench).values())}


def test_points_when_swept_then_each_is_the_estimate_of_a_model_with_those_settings(
    tmp_path: Path,
) -> None:
    model, inputs = wrapped()
    sweep = {"accumulation": [4, 8], "replicas": [1, 2]}
    data = bench_of(emulator.lab(model, *inputs, path=tmp_path / "lab.html", sweep=sweep))
    assert data["start"] == [0, 0]
    assert [setting["values"] for setting in data["settings"]] == [["4", "8"], ["1", "2"]]
    choices = list(itertools.product(*sweep.values()))
    for (accumulation, replicas), point in zip(choices, data["points"], strict=True):
        other, its_inputs = wrapped(accumulation, replicas)
        plan = emulator.estimate(other, *its_inputs)
        assert point["rows_per_second"] == pytest.approx(plan.throughput)
        assert point["num_micro_batches"] == accumulation and point["num_ipus"] == 2 * replicas
        idle = sum(ipu.host_seconds + ipu.bubble_seconds for ipu in plan.ipus)
        assert point["waits"] == pytest.approx(idle / len(plan.ipus) / plan.step_seconds)
        assert sum(point["shares"].values()) == pytest.approx(1)
        assert point["limited_by"] == plan.bottleneck
        tiles = emulator.tile_memory(other, *its_inputs)
        assert [bytes_ for _, bytes_ in point["fullest_bytes"]] == [
            tiles.largest_bytes(ipu) for ipu in tiles.ipus
        ]


def test_lab_when_nothing_is_chosen_then_it_starts_from_the_model_and_says_what_cannot_be(
    tmp_path: Path, few_plans: None
) -> None:
    model, inputs = wrapped()
    # The path may also be the first argument.
    path = emulator.lab(model, tmp_path / "lab.html", *inputs, system="mk2-pod4")
    data = bench_of(path)
    chosen = {
        setting["name"]: setting["values"][at]
        for setting, at in zip(data["settings"], data["start"], strict=True)
    }
    assert chosen == {
        "micro_batch": "4", "accumulation": "4", "num_ipus": "2", "schedule": "grouped",
        "recomputation": "pipeline", "offload": "nothing", "replicas": "1", "system": "mk2-pod4",
    }  # fmt: skip
    values = {setting["name"]: setting["values"] for setting in data["settings"]}
    assert values["schedule"] == list(SCHEDULES) and len(values["accumulation"]) > 8
    faults = {point["fault"] for point in data["points"]} - {None}
    # Two layers cannot be cut into four stages. Every accumulation fills the model's own pipeline.
    assert any("cannot be cut into 4 stages" in fault for fault in faults)
    assert not any("gradientAccumulation" in fault and "(3)" in fault for fault in faults)
    assert len(data["points"]) > 25 and "<iframe" in path._repr_html_()


def test_inference_when_swept_then_settings_of_training_are_left_out(
    tmp_path: Path, few_plans: None
) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(torch.nn.Linear(WIDTH, WIDTH), options)
    path = emulator.lab(model, torch.randn(ROWS, WIDTH), path=tmp_path / "lab.html")
    names = {setting["name"] for setting in bench_of(path)["settings"]}
    assert names == {
        "micro_batch", "num_ipus", "schedule", "replicas", "device_iterations", "system"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sweep", "text"),
    [
        ({"accumulations": [1]}, "accumulation"),
        ({"accumulation": []}, "The sweep has 0 choices"),
        ({"accumulation": range(1, 8000)}, "The sweep has 7,999 choices"),
        ({"schedule": ["group"]}, "grouped"),
    ],
)
def test_sweep_when_it_is_none_then_it_is_refused(
    sweep: dict[str, Any], text: str, tmp_path: Path
) -> None:
    model, inputs = wrapped()
    with pytest.raises(poptorch.Error, match=text):
        emulator.lab(model, *inputs, path=tmp_path / "lab.html", sweep=sweep)


def test_lab_when_the_model_is_not_wrapped_or_a_path_is_missing_then_it_says_what_to_do() -> None:
    model, inputs = wrapped()
    with pytest.raises(TypeError, match="must be wrapped"):
        emulator.lab(Stages(), *inputs, path="lab.html")
    with pytest.raises(TypeError, match=r"emulator.lab needs a path"):
        emulator.lab(model, *inputs)


def test_model_with_a_table_then_the_laboratory_starts_with_it(tmp_path: Path) -> None:
    model, inputs = wrapped(schedule="zero_bubble_h1")
    sweep = {"schedule": ["grouped", "zero_bubble_h1"]}
    data = bench_of(emulator.lab(model, *inputs, path=tmp_path / "lab.html", sweep=sweep))
    assert data["start"] == [1]
    assert "set_schedule" not in data["points"][1]["code"]


def test_choices_when_there_are_too_many_then_those_with_few_changes_are_kept() -> None:
    assert choices_near([2, 3], [0, 0], 6) == list(itertools.product(range(2), range(3)))
    # One start, 1 + 2 + 3 choices with one change, 2 + 3 + 6 with two, and 6 with three.
    assert len(choices_near([2, 3, 4], [1, 2, 0], 24)) == 24
    near = choices_near([2, 3, 4], [1, 2, 0], 23)
    free = choices_near([2, 3, 4], [1, 2, 0], 7, free=[1, 2])
    assert len(free) == 3 * 4 + 1 and set(choices_near([2, 3, 4], [1, 2, 0], 7)) < set(free)
    assert len(near) == 18 and near == sorted(near)
    assert choices_near([2, 3, 4], [1, 2, 0], 7) == [
        (0, 2, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 2, 1), (1, 2, 2), (1, 2, 3),
    ]  # fmt: skip


def test_blocks_of_stages_when_swept_then_the_plan_has_them_and_the_code_too(
    tmp_path: Path,
) -> None:
    model, inputs = wrapped()
    together, apart = [["block0", "block1"]], [["block0"], ["block1"]]
    sweep = {"stages": [together, apart]}
    data = bench_of(emulator.lab(model, *inputs, path=tmp_path / "lab.html", sweep=sweep))
    assert [point["num_ipus"] for point in data["points"]] == [1, 2]
    assert "poptorch.Stage('block0', 'block1').ipu(0)" in data["points"][0]["code"]
    assert "poptorch.Stage('block1').ipu(1)" in data["points"][1]["code"]
