"""More programs than IPUs: programs that do not run lend their IPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

NUM_IPUS = 4


@pytest.fixture(autouse=True)
def _small_system(monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", f"mk2-pod{NUM_IPUS}")


def counter(start: int):
    """Returns a variable, and a function that adds 1 to it."""
    total = keras.Variable(float(start))

    def count():
        total.assign_add(1.0)
        return total

    return total, count


def test_functions_when_more_than_ipus_then_each_runs_and_keeps_its_variables() -> None:
    strategy = programs.strategy()
    counters = [counter(10 * number) for number in range(NUM_IPUS + 2)]
    for turn in range(1, 3):
        for number, (_, count) in enumerate(counters):
            assert float(strategy.run(count)) == 10 * number + turn
    assert [float(total.numpy()) for total, _ in counters] == [2, 12, 22, 32, 42, 52]


def test_models_when_more_than_ipus_then_each_trains_as_an_eager_one() -> None:
    models.use_ipus()
    x, labels = models.data(rows=8)
    trained = []
    for _ in range(NUM_IPUS + 1):
        with models.SCOPE():
            trained.append(models.compiled(models.mlp(), keras.optimizers.SGD(0.1, momentum=0.9)))
    for _ in range(2):
        for model in trained:
            model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    eager = models.compiled(models.mlp(), keras.optimizers.SGD(0.1, momentum=0.9))
    eager.fit(x, labels, batch_size=4, shuffle=False, epochs=2, verbose=0)
    for model in trained:
        assert models.largest_difference(eager, model) < 2e-6


def test_model_of_pytorch_when_functions_hold_all_ipus_then_gets_one() -> None:
    strategy = programs.strategy()
    for number in range(NUM_IPUS):
        strategy.run(counter(number)[1])
    model = poptorch.inferenceModel(torch.nn.Linear(3, 3))
    assert model(torch.ones(2, 3)).shape == (2, 3)
    model.destroy()


def test_functions_when_other_models_hold_all_ipus_then_the_error_says_so() -> None:
    holders = []
    for _ in range(NUM_IPUS):
        holders.append(poptorch.inferenceModel(torch.nn.Linear(3, 3)))
        holders[-1](torch.ones(2, 3))
    total, count = counter(0)
    with pytest.raises(poptorch.Error, match="4 of its 4 are in use"):
        programs.strategy().run(count)
    holders[0].destroy()
    assert float(programs.strategy().run(count)) == 1
    for each in holders[1:]:
        each.destroy()
    np.testing.assert_array_equal(total.numpy(), 1)
