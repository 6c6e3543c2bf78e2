"""Nested Keras models with layers in several stages, compared with a plain eager loop."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import keras_nested_models as nested  # noqa: E402

from poptorch_emu import emulator  # noqa: E402

pytestmark = pytest.mark.feature("Keras: pipelines and replicas", fidelity="exact")

NEAR = 2e-6
BATCH, WINDOW = 2, 8


def on_ipus(name: str):
    models.use_ipus(None)
    with models.SCOPE():
        model = nested.made(name)
    model.set_pipelining_options(WINDOW, gradient_accumulation_reduction_method="mean")
    return models.compiled(model, steps_per_execution=WINDOW, metrics=[])


def fitted(model) -> float:
    x, labels = models.data()
    history = model.fit(x, labels, batch_size=BATCH, shuffle=False, verbose=0)
    return history.history["loss"][0]


@pytest.mark.parametrize("name", nested.NESTED)
def test_models_inside_when_in_several_stages_then_all_equals_eager_keras(name: str) -> None:
    model, stages = on_ipus(name), nested.NESTED[name][1]
    weights = [each.path for each in model.weights]
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, stages)
    model.set_pipeline_stage_assignment(entries)
    assert nested.said_by(model.get_pipeline_stage_assignment()) == stages

    eager = nested.made(name)
    losses = nested.trained_by_hand(eager, BATCH, WINDOW)
    assert fitted(model) == pytest.approx(np.mean(losses), abs=NEAR)
    assert models.largest_difference(eager, model) < NEAR
    assert [each.path for each in model.weights] == weights == [each.path for each in eager.weights]

    _check_places(model, nested.leaves_of(entries))
    x, labels = models.data()
    models.compiled(eager, metrics=[])
    assert model.evaluate(x, labels, batch_size=BATCH, verbose=0) == pytest.approx(
        eager.evaluate(x, labels, batch_size=BATCH, verbose=0), abs=NEAR
    )
    wanted = eager.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, batch_size=BATCH, verbose=0), wanted, atol=NEAR)


def _check_places(model, entries) -> None:
    """Checks that each IPU has the weights of the layers that occur first in its stage."""
    wanted: dict[str, int] = {}
    for each in entries:
        for weight in getattr(each.layer, "trainable_variables", ()):
            stage = wanted.get(weight.path, each.pipeline_stage)
            wanted[weight.path] = min(stage, each.pipeline_stage)
    held = emulator.memory(model).holdings
    assert {each.name: each.ipu for each in held if each.name in wanted} == wanted
