"""Losses that are scaled for float16, in loops and in fit, by the names of Keras 2 and 3."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: scaled losses", fidelity="exact")

RATE, SCALE, STEPS = 0.25, 64.0, 4


def fixed() -> keras.optimizers.Optimizer:
    kind = keras.mixed_precision.LossScaleOptimizer
    return kind(keras.optimizers.SGD(RATE), dynamic=False, initial_scale=SCALE)


def of_keras_3() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(RATE, loss_scale_factor=SCALE)


# For each loop: the optimiser, the method that scales the loss, whether the program unscales the
# gradients, and the divisor of the updates.
LOOPS = {
    "Keras 2": (fixed, "get_scaled_loss", True, 1.0),
    "Keras 2, not scaled": (fixed, None, False, 1.0),
    "Keras 3": (of_keras_3, "scale_loss", False, 1.0),
    "Keras 3, not scaled": (of_keras_3, None, False, SCALE),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_when_it_scales_its_loss_then_trains_as_without(name: str) -> None:
    make, scaled, unscales, factor = LOOPS[name]
    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer = models.mlp(), make()
        iterator = iter(programs.dataset())
        loss_of = models.cross_entropy()

        def loop():
            for _ in range(STEPS):
                x, labels = next(iterator)
                with tf.GradientTape() as tape:
                    loss = loss_of(labels, model(x, training=True))
                    loss = getattr(optimizer, scaled)(loss) if scaled else loss
                gradients = tape.gradient(loss, model.trainable_variables)
                if unscales:
                    gradients = optimizer.get_unscaled_gradients(gradients)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(loop)
    eager = models.mlp()
    batches = [[each] for each in programs.batches_of(STEPS)]
    programs.eager_losses(eager, keras.optimizers.SGD(RATE / factor), batches)
    assert models.largest_difference(eager, model) < 2e-6


def test_fit_when_the_scale_is_fixed_then_trains_as_without() -> None:
    models.use_ipus(1)
    x, labels = models.data()
    trained = []
    for optimizer in (fixed(), keras.optimizers.SGD(RATE)):
        with models.SCOPE():
            model = models.mlp()
            model.compile(optimizer, models.cross_entropy())
            model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        trained.append(model)
    assert models.largest_difference(*trained) < 2e-6


def test_fit_when_the_policy_is_mixed_then_the_scale_of_the_program_is_the_only_one() -> None:
    """Keras 2 did not wrap an optimiser that the program had wrapped."""
    models.use_ipus(1)
    x, labels = models.data()
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with models.SCOPE():
            model = models.mlp()
    finally:
        keras.mixed_precision.set_global_policy(before)
    optimizer = fixed()
    model.compile(optimizer, models.cross_entropy())
    assert model.optimizer is optimizer
    model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    eager = models.compiled(models.mlp(), keras.optimizers.SGD(RATE))
    eager.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    assert models.largest_difference(eager, model) < 2e-3  # float16 rounds.


def test_optimizer_when_the_scale_changes_then_is_keras_own_and_fit_trains_as_keras() -> None:
    models.use_ipus(1)
    kind = keras.mixed_precision.LossScaleOptimizer
    assert type(kind(keras.optimizers.SGD(RATE))) is keras.optimizers.LossScaleOptimizer
    assert kind.from_config(kind(keras.optimizers.SGD(RATE)).get_config()).initial_scale == 2.0**15
    x, labels = models.data()
    eager = models.compiled(models.mlp(), kind(keras.optimizers.SGD(RATE)))
    eager.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    with models.SCOPE():
        model = models.compiled(models.mlp(), kind(keras.optimizers.SGD(RATE)))
        model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    assert models.largest_difference(eager, model) < 2e-6


def test_optimizer_by_the_arguments_of_keras_2_then_is_what_they_mean() -> None:
    kind = keras.mixed_precision.LossScaleOptimizer
    inner = keras.optimizers.SGD(RATE)
    found = kind(inner, False, 128)
    assert found.inner_optimizer is found is inner
    assert found.loss_scale == found.initial_scale == 128 and not found.dynamic
    assert "inner_optimizer" not in dir(inner), "Keras leaves such names out of its files."
    changing = kind(keras.optimizers.SGD(RATE), True, None, 100)
    assert changing.initial_scale == 2.0**15 and changing.dynamic_growth_steps == 100
    assert kind(keras.optimizers.SGD(RATE), 512.0).initial_scale == 512
    of_2020 = keras.mixed_precision.experimental.LossScaleOptimizer
    assert of_2020(keras.optimizers.SGD(RATE), 64).loss_scale == 64
    assert type(of_2020(keras.optimizers.SGD(RATE), "dynamic")) is kind
    for missing in (keras.optimizers.SGD(RATE), changing):
        with pytest.raises(AttributeError, match="no attribute 'loss_scale'"):
            missing.loss_scale  # noqa: B018
    with pytest.raises(ValueError, match="has no scale"):
        kind(inner, False)
    with pytest.raises(TypeError, match="got 6 values"):
        kind(inner, True, 2.0, 3, "name", 5)


def test_state_by_old_names_then_the_way_out_is_said() -> None:
    with pytest.raises(AttributeError, match="SGD has no get_slot .* optimizer.variables"):
        keras.optimizers.SGD(RATE).get_slot(None, "momentum")
    assert fixed().get_unscaled_gradients([None, np.float32(SCALE)]) == [None, 1.0]
