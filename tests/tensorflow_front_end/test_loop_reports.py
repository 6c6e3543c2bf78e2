"""Reports of the emulator on a loop that ran, and on a Keras model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu import emulator  # noqa: E402
from poptorch_emu.plan.memory.memory_plan import Content  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: reports of loops and models", fidelity="modelled")


def loop_that_ran():
    strategy = programs.strategy()
    with strategy.scope():
        model = models.mlp()
        train = programs.step(model, keras.optimizers.SGD(0.1))
        iterator = iter(programs.dataset())

        def loop():
            for _ in range(6):
                train(*next(iterator))

        strategy.run(loop)
    return strategy


def model_that_ran():
    models.use_ipus(1)
    x, labels = models.data()
    with models.SCOPE():
        model = models.compiled(models.mlp(), keras.optimizers.SGD(0.1), steps_per_execution=6)
        model.fit(x[:24], labels[:24], batch_size=programs.ROWS, verbose=0)
    return model


def poptorch_that_compiled():
    """Returns the same as a model of PyTorch, to compare with."""
    layers = torch.nn

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = layers.Sequential(
                layers.Linear(12, 16), layers.ReLU(), layers.Linear(16, 8), layers.Tanh(),
                layers.Linear(8, 3),
            )  # fmt: skip

        def forward(self, x, labels):
            return torch.nn.functional.cross_entropy(self.network(x), labels)

    module = WithLoss()
    options = poptorch.Options().deviceIterations(6).showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    model = poptorch.trainingModel(module, options, optimizer)
    model.compile(torch.ones(24, 12), torch.zeros(24, dtype=torch.int32))
    return model


GIVEN = {"loop": loop_that_ran, "model": model_that_ran}


@pytest.mark.parametrize("name", GIVEN)
def test_plans_then_are_those_of_the_same_model_in_pytorch(name: str) -> None:
    given, other = GIVEN[name](), poptorch_that_compiled()
    weights = [emulator.memory(each).num_bytes(content=Content.WEIGHT) for each in (given, other)]
    assert weights[0] == weights[1] > 0
    seconds = [emulator.estimate(each).step_seconds for each in (given, other)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.5)
    assert str(emulator.schedule(given)).startswith("slot")
    assert len(emulator.timeline(given)) > 0
    sweep = emulator.what_if(given, sweep={"replicas": [1, 2]})
    assert len(sweep.points) == 2
    assert emulator.tile_memory(given) is not None


@pytest.mark.parametrize("name", GIVEN)
def test_files_then_are_written_and_read(name: str, tmp_path: Path) -> None:
    given = GIVEN[name]()
    page = emulator.page(given, tmp_path / "page.html")
    assert "<html" in page.read_text(encoding="utf-8")
    report = emulator.report(given, tmp_path)
    lines = [
        str(each).splitlines() for each in (emulator.read_report(report), emulator.summary(given))
    ]
    assert lines[0][:3] == lines[1][:3]


def test_what_did_not_run_then_the_way_out_is_said() -> None:
    models.use_ipus(1)
    with models.SCOPE():
        model = models.compiled(models.mlp(), keras.optimizers.SGD(0.1))
    for given in (model, programs.strategy()):
        with pytest.raises(TypeError, match="Nothing has run for this .* Call fit"):
            emulator.memory(given)
    ran = model_that_ran()
    ran.set_gradient_accumulation_options(2)
    with pytest.raises(TypeError, match="compiled anew since"):
        emulator.summary(ran)
    with pytest.raises(TypeError, match="must be wrapped, but got"):
        emulator.memory(keras.Sequential([keras.layers.Dense(1)]))
