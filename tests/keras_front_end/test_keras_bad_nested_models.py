"""Errors for nested Keras models whose stages do not fit, or that cannot be divided."""

from __future__ import annotations

import pytest

keras = pytest.importorskip("keras")

from keras import layers  # noqa: E402
from support import keras_models as models  # noqa: E402
from support import keras_nested_models as nested  # noqa: E402
from support.keras_refusals import fit, on_ipus, refuses  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: what has no counterpart", fidelity="refused")


@pytest.fixture(autouse=True)
def _any_ipus():
    models.use_ipus(None)


def outer(inner) -> keras.Model:
    inputs = keras.Input((12,))
    return keras.Model(inputs, layers.Dense(3, name="last")(inner(inputs)), name="outer")


def given(model, stages) -> keras.Model:
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, stages)
    model.set_pipeline_stage_assignment(entries)
    return model


class Inside(keras.Model):
    """A user's own model class: two layers, with a computation between them."""

    def __init__(self, between, stage: int | None = None) -> None:
        super().__init__(name="inside")
        self.between, self.stage = between, stage
        self.first, self.second = layers.Dense(12, name="a"), layers.Dense(12, name="b")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, x, training=None):
        x = self.first(x)
        if self.stage is not None:
            with ipu.keras.PipelineStage(self.stage):
                x = keras.ops.relu(x)
        return self.second(self.between(self, x, training))


def assigns(model, x, training):
    model.count.assign_add(1.0)
    return x


def adds_loss(model, x, training):
    model.add_loss(keras.ops.sum(model.count))
    return x


def draws(model, x, training):
    return x + keras.random.normal((12,), seed=model.seeds)


def reads_values(model, x, training):
    if keras.backend.is_keras_tensor(x):
        raise RuntimeError("no values")
    return x


def is_fickle(model, x, training):
    return keras.ops.tanh(x) if training else x


def is_scaled(model, x, training):
    return x * (2.0 if training else 1.0)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (assigns, "it assigns to variable 'inside/variable"),
        (adds_loss, "it calls add_loss"),
        (draws, "it assigns to variable 'seed_generator.*, or draws random numbers by it"),
        (reads_values, r"it cannot be run on symbolic tensors \(no values\)"),
        (is_fickle, "it runs other layers if training is True"),
        (is_scaled, "it runs other layers if training is True"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_call_of_a_model_inside_when_it_does_more_than_its_layers_then_runs_as_a_whole(
    between, reason: str
) -> None:
    model = on_ipus(lambda: outer(Inside(between)))
    entries = model.get_pipeline_stage_assignment()
    inside, last = entries
    inside.pipeline_stage, last.pipeline_stage = 0, 1
    model.set_pipeline_stage_assignment(entries)
    model.set_pipelining_options(4)
    fit(model, steps_per_execution=4, metrics=[])
    assert float(model.layers[1].count.numpy()) == (8.0 if between is assigns else 0.0)
    inside.pipeline_stage_assignments[-1].pipeline_stage = 1
    with refuses(
        r"nested model 'inside' is to be divided into the pipeline stages \[0, 1\], but it has "
        rf"to run as a whole: {reason}.*\. Change that, or give all its layers one stage\."
    ):
        model.set_pipeline_stage_assignment(entries)


@pytest.mark.filterwarnings(r"ignore:`build\(\)` was called on layer")
def test_call_of_the_model_when_stages_would_lose_what_it_assigns_then_is_refused() -> None:
    class Network(Inside):
        def call(self, x, training=None):
            return super().call(x, training)[:, :3]

    model = on_ipus(lambda: Network(assigns))
    model.build((None, 12))
    entries = model.get_pipeline_stage_assignment()
    for each in entries:
        each.pipeline_stage = int(each.layer.name == "b" or each is entries[-1])
    model.set_pipeline_stage_assignment(entries)
    model.set_pipelining_options(4)
    with refuses("it assigns to variable .* would be lost. Move that into the call.. of a", Error):
        fit(model, steps_per_execution=4)


def test_call_when_it_enters_a_stage_but_cannot_be_divided_then_is_refused() -> None:
    with refuses(r"runs other layers if training is True", Error):
        on_ipus(lambda: outer(Inside(is_fickle, 0))).get_pipeline_stage_assignment()
    model = on_ipus(lambda: outer(Inside(assigns, 0)))
    with refuses(
        r"into the pipeline stages \[0\], but it has to run as a whole: it assigns to .*\. Change "
        r"that, or enter stages around its call\(\) instead of in it"
    ):
        fit(given(model, [[0, 0, 0], 0]))


def test_regularizer_of_the_activity_of_a_model_inside_then_runs_as_a_whole() -> None:
    def make():
        inner = nested.functional()
        inner.activity_regularizer = keras.regularizers.L2(0.1)
        return outer(inner)

    with refuses("has to run as a whole: it has an activity_regularizer"):
        given(on_ipus(make), [[0, 1], 1])


def test_sequential_inside_when_it_is_not_built_then_runs_as_a_whole() -> None:
    def make():
        inner = keras.Sequential([layers.Dense(12), layers.Dense(12)], name="inner")
        return keras.Sequential([inner, layers.Dense(3)])

    with refuses("'inner' .* as a whole: it is not built, or has no graph of layers"):
        given(on_ipus(make), [[0, 1], 1])


def test_stages_when_they_decrease_or_are_missing_inside_then_the_layer_is_named() -> None:
    model = given(on_ipus(lambda: outer(nested.functional())), [[0, 1], 0])
    with refuses("Layer 'last' is in pipeline stage 0, but takes a result of 'inner/b' in stage 1"):
        fit(model)
    model = given(on_ipus(lambda: outer(nested.functional())), [[1, 0], 1])
    with refuses("Layer 'inner/b' is in pipeline stage 0, but takes a result of 'inner/a' in"):
        fit(model)

    def make_partly():
        inputs = keras.Input((12,))
        with ipu.keras.PipelineStage(0):
            hidden = layers.Dense(12)(inputs)
        return keras.Model(inputs, nested.functional()(hidden))

    with refuses("these have none: inner."):
        fit(on_ipus(make_partly))
    chain = [keras.Input((12,)), nested.sequential(), layers.Dense(3)]
    with refuses("Layer 'dense.*' has stage 0, but the layer before has stage 1"):
        given(on_ipus(lambda: keras.Sequential(chain)), [[0, 1], 0])


def test_entries_when_too_few_or_in_another_order_then_are_refused() -> None:
    model = on_ipus(lambda: outer(nested.functional()))
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, [[0, 0], 1])
    with refuses("got 1 stages, but model 'outer' has 2 layer calls: inner, last"):
        model.set_pipeline_stage_assignment(entries[:1])
    with refuses("The entry of layer 'last' stands where model 'outer' has 'inner'"):
        model.set_pipeline_stage_assignment(entries[::-1])
    inside = entries[0].pipeline_stage_assignments
    inside[:] = inside[::-1]
    with refuses("The entry of layer 'b' stands where model 'inner' has 'a'"):
        model.set_pipeline_stage_assignment(entries)
    del inside[0]
    with refuses("got 1 stages, but model 'inner' has 2 layer calls: a, b"):
        model.set_pipeline_stage_assignment(entries)


def test_model_inside_when_it_changed_after_the_assignment_then_is_refused() -> None:
    inner = nested.sequential()
    model = given(on_ipus(lambda: outer(inner)), [[0, 1], 1])
    inner.add(layers.Dense(12))
    with refuses("nested model 'chain' has 3 layer calls, but had 2 when its pipeline stages were"):
        fit(model)
    whole = on_ipus(models.mlp)
    whole.set_pipeline_stage_assignment([0, 0, 1])
    whole.add(layers.Dense(3))
    with refuses("'sequential.*' has 4 layers, but had 3 when its pipeline stages were assigned"):
        fit(whole)


def test_batch_norm_when_its_model_is_called_in_several_stages_then_is_refused() -> None:
    def make():
        inner = keras.Sequential([keras.Input((12,)), layers.BatchNormalization(name="norm")])
        inputs = keras.Input((12,))
        return keras.Model(inputs, inner(inner(inputs)))

    model = given(on_ipus(make), [[0], [1]])
    model.set_pipelining_options(4)
    with refuses("norm/moving_mean' is read in stage 0 and written in stage 1", Error):
        fit(model, steps_per_execution=4)
