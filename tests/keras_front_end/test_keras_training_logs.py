"""Curves of the training of a Keras model, read by TensorBoard's reader."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorboard")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support.tensorboard_runs import curves_of, use_stub  # noqa: E402

from poptorch_emu import emulator  # noqa: E402

pytestmark = pytest.mark.feature("emulator.log_training", fidelity="exact")


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_stub(monkeypatch)
    yield
    gc.collect()  # Models of Keras are in circles.


class LossOfEachBatch(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.means.append((logs or {})["loss"])  # Of the epoch until now.


def test_log_when_begun_before_fit_then_has_the_loss_of_each_update(tmp_path: Path) -> None:
    models.use_ipus(1)
    x, y = models.data(rows=8 * 4)
    with models.scope(True):
        model = models.mlp()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=1)
    shown = LossOfEachBatch()
    with emulator.log_training(model, tmp_path / "runs") as log:
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[shown])
        model.evaluate(x, y, batch_size=4, verbose=0)
        model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=4)
        history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    assert log.path == tmp_path / "runs" / model.name
    curves = curves_of(log.path)
    steps, losses = zip(*curves["loss"], strict=True)
    assert list(steps) == list(range(1, 17))
    np.testing.assert_allclose(np.cumsum(losses[:8]) / np.arange(1, 9), shown.means, rtol=1e-5)
    assert np.mean(losses[8:]) == pytest.approx(history.history["loss"][0], rel=1e-5)
    assert {"throughput/machine", "memory/engine", "throughput/engine"} <= set(curves)


def test_log_of_an_optimizer_by_the_formula_of_keras_then_fit_says_the_way_out(
    tmp_path: Path,
) -> None:
    models.use_ipus(1)
    x, y = models.data(rows=8)
    with models.scope(True):
        model = models.mlp()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Nadam(0.1), loss)
    log = emulator.log_training(model, tmp_path)
    with pytest.raises(TypeError, match="by Keras's own formula, .* callback"):
        model.fit(x, y, batch_size=4, verbose=0)
    log.close()
    model.fit(x, y, batch_size=4, verbose=0)
