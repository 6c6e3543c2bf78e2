"""Priority of the sources that assign stages to layers of nested models."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from keras import layers  # noqa: E402
from support import keras_models as models  # noqa: E402
from support import keras_nested_models as nested  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: pipelines and replicas", fidelity="exact")

NEAR = 2e-6
Stage = ipu.keras.PipelineStage


def on_ipus(make):
    models.use_ipus(None)
    with models.SCOPE():
        return make()


def stages_of(model) -> list:
    return nested.said_by(model.get_pipeline_stage_assignment())


def trains_as_eager(model, make, shape: tuple[int, ...] = (12,)) -> None:
    """Trains `model`, and the model of `make` in a plain loop of eager Keras, and compares them."""
    eager = make()
    losses = nested.trained_by_hand(eager, 4, 8, shape)
    model.set_pipelining_options(8, gradient_accumulation_reduction_method="mean")
    models.compiled(model, steps_per_execution=8, metrics=[])
    x, labels = models.data(shape)
    history = model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    assert history.history["loss"][0] == pytest.approx(np.mean(losses), abs=NEAR)
    assert models.largest_difference(eager, model) < NEAR
    wanted = eager.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), wanted, atol=NEAR)


def built_in_stages(*numbers: int | None):
    """Builds a model of three layers, two of them in a nested model with the third stage."""
    keras.utils.set_random_seed(1)

    def stage(number: int | None):
        return nullcontext() if number is None else Stage(number)

    inputs = keras.Input((12,))
    with stage(numbers[0]):
        hidden = layers.Dense(12, name="a")(inputs)
    with stage(numbers[1]):
        hidden = layers.Dense(12, name="b")(hidden)
    inner = keras.Model(inputs, hidden, name="inner")
    start = keras.Input((12,))
    with stage(numbers[2]):
        hidden = inner(start)
    with stage(numbers[3]):
        return keras.Model(start, layers.Dense(3, name="last")(hidden))


@pytest.mark.parametrize(
    ("numbers", "stages"),
    [
        ((0, 1, None, 1), [[0, 1], 1]),
        ((0, 1, 0, 1), [[0, 0], 1]),  # A nested model's call precedes the calls inside it.
        ((None, None, 0, 1), [[0, 0], 1]),
    ],
)
def test_stage_when_entered_inside_and_around_then_the_call_around_decides(numbers, stages) -> None:
    model = on_ipus(lambda: built_in_stages(*numbers))
    assert stages_of(model) == stages
    trains_as_eager(model, lambda: built_in_stages(None, None, None, None))


def test_layer_when_constructed_in_a_stage_then_keeps_it_for_calls_outside() -> None:
    def make(in_stage: bool):
        keras.utils.set_random_seed(1)
        with Stage(0) if in_stage else nullcontext():
            chain = keras.Sequential([layers.Dense(12), layers.ReLU()], name="chain")
            block = nested.Block(8, "block")
        with Stage(1) if in_stage else nullcontext():
            own, last = layers.Dense(12), layers.Dense(3)
        inputs = keras.Input((12,))
        inner = keras.Sequential([keras.Input((12,)), layers.Dense(12), own], name="inner")
        inner.layers[0].activation = keras.activations.tanh
        with Stage(0) if in_stage else nullcontext():
            hidden = inner.layers[0](block(chain(inputs)))
        return keras.Model(inputs, last(own(hidden)))

    model = on_ipus(lambda: make(True))
    # The product in the call of the block is no layer, so it is in the stage of the block.
    assert stages_of(model) == [[0, 0], [0, 0, 0, 0, 0], 0, 1, 1]
    trains_as_eager(model, lambda: make(False))


class InStages(keras.Model):
    """A nested model whose `call` enters stages."""

    def __init__(self, second: int | None) -> None:
        super().__init__(name="inside")
        self.stage = (lambda _: nullcontext()) if second is None else Stage
        self.numbers = (0, second)
        self.first, self.second = layers.Dense(12, name="a"), layers.Dense(12, name="b")

    def call(self, x, training=None):
        with self.stage(self.numbers[0]):
            x = self.first(x)
        with self.stage(self.numbers[1]):
            return self.second(keras.ops.tanh(x))


@pytest.mark.parametrize("second", [0, 1])
def test_call_of_a_model_inside_when_it_enters_stages_then_they_hold(second: int) -> None:
    def make(second: int | None):
        keras.utils.set_random_seed(1)
        with nullcontext() if second is None else Stage(1):
            last = layers.Dense(3, name="last")
        inputs = keras.Input((12,))
        return keras.Model(inputs, last(InStages(second)(inputs)))

    model = on_ipus(lambda: make(second))
    assert stages_of(model) == [[0, second, second], 1]
    kinds = [type(each) for each in nested.leaves_of(model.get_pipeline_stage_assignment())]
    assert kinds[:3] == [ipu.keras.ModelLayerPipelineStageAssignment] * 3
    trains_as_eager(model, lambda: make(None))


def test_sequential_inside_when_it_has_stages_then_they_are_the_default() -> None:
    def make():
        keras.utils.set_random_seed(1)
        inner = nested.sequential()
        if hasattr(inner, "set_pipeline_stage_assignment"):
            inner.set_pipeline_stage_assignment([0, 1])
        inputs = keras.Input((12,))
        return keras.Model(inputs, layers.Dense(3, name="last")(inner(inputs)))

    model = on_ipus(make)
    assert stages_of(model) == [[0, 1], None]
    entries = model.get_pipeline_stage_assignment()
    entries[1].pipeline_stage = 2
    model.set_pipeline_stage_assignment(entries)
    trains_as_eager(model, make)
    model.reset_pipeline_stage_assignment()
    assert stages_of(model) == [[None, None], None]
    inner = model.layers[1]
    assert [each.pipeline_stage for each in inner.get_pipeline_stage_assignment()] == [0, 1]


@pytest.mark.filterwarnings("ignore:Layer '(inner|reading)'")  # Keras warns that masks end there.
def test_mask_when_it_goes_into_another_stage_then_trains_as_eager_keras() -> None:
    model = on_ipus(nested.masked)
    entries = model.get_pipeline_stage_assignment()
    by_name = {each.layer.name: each for each in entries}
    nested.give(entries, [2 if name in ("join", "last") else 0 for name in by_name])
    nested.give(by_name["keeping"].pipeline_stage_assignments, [0, 0, 1, 1])
    nested.give(by_name["inner"].pipeline_stage_assignments, [1, 2])
    nested.give(by_name["reading"].pipeline_stage_assignments, [1, 2])
    model.set_pipeline_stage_assignment(entries)
    trains_as_eager(model, nested.masked, (6,))


def test_mask_in_a_sequential_then_is_made_in_the_stage_of_its_embedding() -> None:
    def make():
        keras.utils.set_random_seed(1)
        parts = [layers.Embedding(20, 8, mask_zero=True), layers.LSTM(4), layers.Dense(3)]
        return keras.Sequential([keras.Input((6,), dtype="int32"), *parts])

    model = on_ipus(make)
    model.set_pipeline_stage_assignment([0, 1, 1])
    trains_as_eager(model, make, (6,))


def test_dropout_inside_then_drops_in_training_alone() -> None:
    def make():
        keras.utils.set_random_seed(1)
        drop = [layers.Dropout(0.5), layers.Dense(12, name="b")]
        inner = keras.Sequential([keras.Input((12,)), layers.Dense(400), *drop], name="inner")
        return keras.Sequential([keras.Input((12,)), inner, layers.Dense(3)], name="outer")

    model = on_ipus(make)
    ipu.utils.reset_ipu_seed(1)
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, [[0, 1, 1], 1])
    model.set_pipeline_stage_assignment(entries)
    model.set_pipelining_options(4)
    models.compiled(model, keras.optimizers.SGD(0.0), steps_per_execution=4, metrics=[])
    x, labels = models.data()
    wanted = models.compiled(make(), metrics=[]).evaluate(x, labels, verbose=0)
    assert model.evaluate(x, labels, batch_size=4, verbose=0) == pytest.approx(wanted, abs=NEAR)
    losses = model.fit(x, labels, batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert all(abs(loss - wanted) > 1e-3 for loss in losses) and losses[0] != losses[1]


def test_model_with_stages_inside_when_saved_then_keras_reads_it_as_it_was(tmp_path) -> None:
    model = on_ipus(lambda: nested.made("deep"))
    before = model.get_config()
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, nested.NESTED["deep"][1])
    model.set_pipeline_stage_assignment(entries)
    model.set_pipelining_options(8)
    models.compiled(model, steps_per_execution=8)
    x, labels = models.data()
    model.fit(x, labels, batch_size=4, verbose=0)
    assert [each.name for each in model.layers] == ["upper", "last"]
    model.save(tmp_path / "model.keras")
    found = keras.models.load_model(tmp_path / "model.keras")
    assert models.largest_difference(found, model) == 0
    assert model.get_config() == before
    assert _names(found) == _names(model)
    wanted = models.compiled(found).predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), wanted, atol=NEAR)


def _names(model) -> list:
    return [[each.name, *_names(each)] for each in getattr(model, "layers", ())]


def test_summary_then_has_the_layers_inside_below_their_model() -> None:
    model = on_ipus(lambda: nested.made("sequential in functional"))
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, [[0, 1], 2])
    model.set_pipeline_stage_assignment(entries)
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(line_length=60, print_fn=lines.append)
    assert [line.split() for line in lines[2:]] == [
        ["chain", "(0)", "Sequential"],
        ["c", "Dense", "0"],
        ["d", "Dense", "1"],
        ["last", "(0)", "Dense", "2"],
    ]
    assert str(entries) == "[chain: [c: stage 0, d: stage 1], last[0]: stage 2]"


def test_entries_of_branches_then_come_in_post_order() -> None:
    def make():
        inputs = keras.Input((12,))
        long = layers.Dense(12, name="b")(layers.Dense(12, name="a")(inputs))
        short = layers.Dense(12, name="c")(inputs)
        return keras.Model(inputs, layers.Add(name="sum")([short, long]))

    entries = on_ipus(make).get_pipeline_stage_assignment()
    assert [each.layer.name for each in entries] == ["c", "a", "b", "sum"]
