"""Pipeline stages that are entered in the `call` of a user's own model class."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from keras import layers  # noqa: E402
from support import keras_models as models  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: pipelines and replicas", fidelity="exact")

Stage = ipu.keras.PipelineStage


class Network(keras.Model):
    """Two dense layers; the second one also reads the input of the first one."""

    def __init__(self, has_stages: bool) -> None:
        super().__init__()
        keras.utils.set_random_seed(0)
        self.has_stages = has_stages
        self.first = layers.Dense(8, activation="relu")
        self.join = layers.Concatenate()
        self.dropout = layers.Dropout(0.0)
        self.second = layers.Dense(3)

    def call(self, x, training=None):
        if not self.has_stages:
            return self.second(self.join([self.first(x), x]))
        with Stage(0):
            hidden = self.first(x)
        with Stage(1):
            return self.second(self.dropout(self.join([hidden, x]), training=training))


def trained(has_stages: bool, *, on_ipus: bool):
    models.use_ipus(2 if has_stages else 1)
    x, labels = models.data()
    with models.scope(on_ipus):
        model = Network(has_stages)
        model.compile(keras.optimizers.SGD(0.1), models.cross_entropy())
        if on_ipus:
            model.compile(keras.optimizers.SGD(0.1), models.cross_entropy(), steps_per_execution=4)
            model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
        model.fit(x, labels, batch_size=2 if on_ipus else 8, shuffle=False, verbose=0)
    return model


def test_model_with_stages_in_call_then_trains_as_without() -> None:
    eager, model = trained(False, on_ipus=False), trained(True, on_ipus=True)
    assert models.largest_difference(eager, model) < 1e-5
    x, _ = models.data()
    wanted = eager.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), wanted, atol=1e-5)


@pytest.mark.filterwarnings(r"ignore:`build\(\)` was called on layer")
def test_assignment_then_is_that_of_the_call_once_the_model_is_built() -> None:
    models.use_ipus(2)
    with models.SCOPE():
        model = Network(True)
        with pytest.raises(RuntimeError, match=r"Call build\(input_shape\)"):
            model.get_pipeline_stage_assignment()
        model.build((None, 12))
    found = {each.layer.name: each.pipeline_stage for each in model.get_pipeline_stage_assignment()}
    assert found == {
        model.first.name: 0, model.join.name: 1, model.dropout.name: 1, model.second.name: 1
    }  # fmt: skip


@pytest.mark.filterwarnings(r"ignore:`build\(\)` was called on layer")
def test_graph_of_a_call_when_it_is_found_then_nothing_is_assigned() -> None:
    class Counting(Network):
        def __init__(self) -> None:
            super().__init__(has_stages=True)
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x, training=None):
            self.calls.assign_add(1)
            with Stage(0):
                x = x + 1  # An operation, which has another name in each run.
            return super().call(x)

    models.use_ipus(2)
    with models.SCOPE():
        model = Counting()
        model.build((None, 12))
        assert len(model.get_pipeline_stage_assignment()) == 5
    assert model.calls.numpy() == 0


def test_call_when_it_runs_other_layers_in_training_then_is_refused() -> None:
    class Fickle(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(8), layers.Dense(3)

        def call(self, x, training=None):
            with Stage(0):
                x = self.first(x)
            with Stage(1):
                return self.second(keras.ops.relu(x) if training else x)

    models.use_ipus(2)
    x, labels = models.data()
    with models.SCOPE():
        model = Fickle()
        model.compile("sgd", models.cross_entropy())
        with pytest.raises(Error, match="runs other layers if training is True"):
            model.fit(x, labels, batch_size=4, verbose=0)


@pytest.mark.filterwarnings("ignore:.build")
def test_entries_then_count_the_calls_in_call() -> None:
    class Twice(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.relu = layers.Dense(4), layers.ReLU()

        def call(self, x):
            return self.relu(self.dense(self.relu(x)))

    models.use_ipus(2)
    with models.scope(True):
        model = Twice()
        model.build((2, 4))
    entries = model.get_pipeline_stage_assignment()
    assert [entry.node_index for entry in entries] == [0, 0, 1]
    for entry, stage in zip(entries, [0, 0, 1], strict=True):
        entry.pipeline_stage = stage
    model.set_pipeline_stage_assignment(entries)
    assert [each.pipeline_stage for each in model.get_pipeline_stage_assignment()] == [0, 0, 1]
