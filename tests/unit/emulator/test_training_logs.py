"""Curves of a training, read by TensorBoard's reader: values, runs, and the life of a log."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("tensorboard")

from support.tensorboard_runs import curves_of, events_of, use_stub

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.enums import OutputMode
from poptorch_emu.report import training_log
from poptorch_emu.report.training_scalars import SCALARS, means

pytestmark = pytest.mark.feature("emulator.log_training", fidelity="exact")

ITERATIONS, ACCUMULATION, REPLICAS, ROWS, CALLS = 2, 2, 2, 3, 3
RATE = 0.1


class Model(torch.nn.Module):
    """Returns a tensor, the loss and another number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        with poptorch.Block("layer", ipu_id=0):
            y = self.layer(x)
            loss = torch.nn.functional.mse_loss(y, target)
            return {"y": y, "total": loss, "parts": {"largest": y.abs().amax()}}


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stub(monkeypatch)


def wrapped(module: torch.nn.Module | None = None, **choices: Any) -> poptorch.PoplarExecutor:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(choices.get("iterations", 1))
    options.replicationFactor(choices.get("replicas", 1))
    options.Training.gradientAccumulation(choices.get("accumulation", 1))
    options.outputMode(choices.get("mode", OutputMode.All))
    if "profile" in choices:
        options.enableProfiling(str(choices["profile"]))
    module = module or Model()
    return poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=RATE))


def batches(rows: int, count: int = CALLS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(rows, 4), torch.randn(rows, 2)) for _ in range(count)]


def plain_losses(module: Model, updates: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Yields the mean loss of each update of PyTorch's own loop, and the mean largest output."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for x, target in updates:
        optimizer.zero_grad()
        pieces = zip(x.split(ROWS), target.split(ROWS), strict=True)
        found = [module(*piece) for piece in pieces]
        loss = torch.stack([each["total"] for each in found]).mean()
        loss.backward()
        optimizer.step()
        yield loss.item(), torch.stack([each["parts"]["largest"] for each in found]).mean().item()


def test_curves_of_a_training_then_are_those_of_the_plain_loop_and_of_the_reports(tmp_path):
    torch.manual_seed(0)
    module = Model()
    twin = copy.deepcopy(module)
    model = wrapped(module, iterations=ITERATIONS, accumulation=ACCUMULATION, replicas=REPLICAS)
    of_update = ACCUMULATION * REPLICAS * ROWS
    calls = batches(ITERATIONS * of_update)
    with emulator.log_training(model, tmp_path / "runs") as log:
        for call in calls:
            model(*call)
        seconds = model._on_device.measurement.call_seconds
    assert log.path == tmp_path / "runs" / "Model"
    curves = curves_of(log.path)

    updates = [
        piece
        for x, target in calls
        for piece in zip(x.split(of_update), target.split(of_update), strict=True)
    ]
    wanted = list(plain_losses(twin, updates))
    steps = list(range(1, CALLS * ITERATIONS + 1))
    losses, largest = zip(*wanted, strict=True)
    for tag, values in (("loss", losses), ("outputs/parts/largest", largest)):
        assert [step for step, _ in curves[tag]] == steps
        assert [value for _, value in curves[tag]] == pytest.approx(values, rel=1e-5)

    ends = steps[ITERATIONS - 1 :: ITERATIONS]
    assert [step for step, _ in curves["throughput/engine"]] == ends
    assert [step for step, _ in curves["throughput/program"]] == ends[1:]
    rows = ITERATIONS * of_update
    assert curves["throughput/engine"][-1][1] == pytest.approx(rows / seconds)
    assert curves["throughput/program"][-1][1] < curves["throughput/engine"][-1][1]
    plan, tiles = emulator.estimate(model), emulator.tile_memory(model)
    assert curves["throughput/machine"] == [(step, pytest.approx(plan.throughput)) for step in ends]
    fullest = tiles.largest_bytes(tiles.ipus[0]) / 1024
    assert curves["memory/fullest_tile_of_ipu_0"][0] == (ends[0], pytest.approx(fullest))
    # Weights, and gradients that are added up over micro-batches.
    num_bytes = 4 * sum(weight.numel() for weight in module.parameters())
    held = curves["memory/engine"][0][1] * 2**20
    assert num_bytes <= held <= 3 * num_bytes
    assert curves["memory/process"][-1][1] > 50
    assert len(curves) == 8


def test_curves_then_each_tells_its_unit_meaning_and_fidelity(tmp_path):
    model = wrapped()
    with emulator.log_training(model, tmp_path) as log:
        model(*batches(ROWS, 1)[0])
    reader = events_of(log.path)
    texts = [reader.SummaryMetadata(tag).summary_description for tag in reader.Tags()["scalars"]]
    assert len(texts) == 7  # The first call has no call before it.
    for kind in SCALARS:
        assert kind.fidelity in ("exact", "modelled")
        assert kind.description in texts or kind.tag == "throughput/program"
    assert "Unit: rows/s. Fidelity: modelled." in "".join(texts)


@pytest.mark.parametrize(
    ("mode", "values", "wanted"),
    [
        (OutputMode.All, [1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 4.0, 4.0], [4.0, 3.0]),
        (OutputMode.Final, [1.0, 4.0], [2.5]),
        (OutputMode.EveryN, [1.0, 3.0, 5.0, 7.0], [4.0]),
        (OutputMode.Sum, [8.0, 16.0], [3.0]),
    ],
)
def test_values_of_a_call_by_output_mode_then_their_mean_is_that_of_a_micro_batch(
    mode, values, wanted
):
    config = SimpleNamespace(output_mode=mode, device_iterations=2, gradient_accumulation=2)
    program = SimpleNamespace(config=config, num_windows=2)
    assert means(torch.tensor(values), program) == wanted


def test_logs_in_one_folder_then_each_is_a_run_of_its_own(tmp_path):
    model, other = wrapped(), wrapped(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    paths = [
        emulator.log_training(one, tmp_path, name=name).path
        for one, name in ((model, None), (other, None), (model, None), (model, "a/b"))
    ]
    assert [path.name for path in paths] == ["Model", "Sequential", "Model_2", "a_b"]
    assert all(path.parent == tmp_path and list(path.iterdir()) for path in paths)


def test_log_when_the_model_is_destroyed_and_streamed_then_it_goes_on_until_it_is_closed(tmp_path):
    model = wrapped(iterations=2, profile=tmp_path / "profile")
    calls = batches(2 * ROWS, 4)
    model(*calls[0])
    log = emulator.log_training(model, tmp_path / "runs")  # The model is compiled already.
    found = [model(*calls[1])["total"]]
    model.destroy()
    with emulator.stream(model, *calls[2]) as results:
        found.append(torch.stack([result["total"] for result in results]))
    log.close()
    model(*calls[3])
    log.close()
    curve = curves_of(log.path)["loss"]
    assert [step for step, _ in curve] == [1, 2, 3, 4]
    assert [value for _, value in curve] == pytest.approx(torch.cat(found).tolist())
    assert repr(log).endswith("4 updates, closed>")
    assert model._on_device.measurement._listeners == []
    # The profile is written beside the log.
    assert model._on_device.measurement.profile.run().events


def test_log_when_its_file_cannot_be_written_then_it_warns_once_and_the_model_trains(
    tmp_path, monkeypatch
):
    def fail(*_: object) -> None:
        raise OSError("no space left")

    warnings = []
    monkeypatch.setattr(training_log.logger, "warning", lambda *args: warnings.append(args))
    model = wrapped()
    log = emulator.log_training(model, tmp_path)
    monkeypatch.setattr(log.writer.file_writer, "add_summary", fail)
    for call in batches(ROWS, 2):
        model(*call)
    assert len(warnings) == 1 and "no space left" in str(warnings[0])


class Hidden(Model):
    """Does not return its loss."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(x, target)["y"]


def test_log_when_forward_does_not_return_the_loss_then_warns_and_tells_what_to_return(
    tmp_path, monkeypatch
):
    warnings = []
    monkeypatch.setattr(training_log.logger, "warning", lambda *args: warnings.append(args))
    model = wrapped(Hidden())
    with emulator.log_training(model, tmp_path) as log:
        model(*batches(ROWS, 1)[0])
    assert "loss" not in curves_of(log.path)
    assert "Return the loss" in warnings[0][0]


def test_log_when_tensorboard_is_missing_then_the_error_names_the_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'poptorch_emu\[tensorboard\]'"):
        emulator.log_training(wrapped(), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_log_of_a_wrong_argument_then_the_error_tells_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="log.writer.add_scalar"):
        emulator.log_training(poptorch.inferenceModel(Model()), tmp_path)
    with pytest.raises(TypeError, match="must be wrapped"):
        emulator.log_training(Model(), tmp_path)
    with pytest.raises(TypeError, match="directory is 3 of type int"):
        emulator.log_training(wrapped(), 3)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        emulator.log_training(wrapped(), tmp_path / "file")


def test_copy_of_a_model_then_has_no_log(tmp_path: Path) -> None:
    model = wrapped()
    with emulator.log_training(model, tmp_path) as log:
        other = copy.deepcopy(model)
        other(*batches(ROWS, 1)[0])
        assert log.num_updates == 0
