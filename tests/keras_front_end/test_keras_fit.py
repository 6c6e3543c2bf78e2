"""Training on virtual IPUs compared with eager Keras: the same `fit`, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402

pytestmark = pytest.mark.feature("Keras: fit, evaluate, predict", fidelity="exact")
optimizers = keras.optimizers
schedules = optimizers.schedules

# Tolerance for sums in another order, which Adam enlarges by dividing by small roots.
NEAR = 1e-6


@pytest.fixture(autouse=True)
def _one_ipu():
    models.use_ipus(1)


def fitted(make, shape, optimizer, *, is_on_ipus: bool, steps: int = 1, **settings):
    """Returns a model after two epochs, and Keras's logs."""
    with models.scope(is_on_ipus):
        model = make()
    models.compiled(model, optimizer(), steps_per_execution=steps, **settings)
    x, labels = models.data(shape)
    return model, model.fit(x, labels, batch_size=4, epochs=2, shuffle=False, verbose=0).history


def sgd():
    return optimizers.SGD(0.1)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", models.MODELS)
def test_fit_then_weights_and_logs_are_those_of_eager_keras(name: str, steps: int) -> None:
    make, shape = models.MODELS[name]
    eager, wanted = fitted(make, shape, sgd, is_on_ipus=False)
    model, logs = fitted(make, shape, sgd, is_on_ipus=True, steps=steps)
    assert models.largest_difference(eager, model) < NEAR
    for key in wanted:
        np.testing.assert_allclose(logs[key], wanted[key], atol=NEAR)


class OriginalRMSprop(optimizers.RMSprop):
    """RMSprop with epsilon outside of the root, as in Keras 2 without momentum."""

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        velocity = self._velocities[index]
        velocity.assign(self.rho * velocity + (1 - self.rho) * keras.ops.square(gradient))
        moment = velocity.value
        if self.centered:
            average = self._average_gradients[index]
            average.assign(self.rho * average + (1 - self.rho) * gradient)
            moment = moment - keras.ops.square(average)
        step = gradient / (keras.ops.sqrt(moment) + self.epsilon)
        variable.assign_sub(learning_rate * step)


OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "sgd-decay": lambda: optimizers.SGD(0.1, weight_decay=0.05),
    "sgd-momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "sgd-nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "sgd-clipped": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "sgd-scaled": lambda: optimizers.SGD(0.1, global_clipnorm=0.1, loss_scale_factor=64.0),
    "adam": lambda: optimizers.Adam(1e-3),
    "adam-eps": lambda: optimizers.Adam(1e-3, beta_1=0.8, beta_2=0.9, epsilon=1e-2),
    "adam-decay": lambda: optimizers.Adam(1e-3, weight_decay=0.1),
    "adam-scaled": lambda: optimizers.Adam(1e-3, loss_scale_factor=128.0, global_clipnorm=0.1),
    "adamw": lambda: optimizers.AdamW(1e-3),
    "rmsprop": lambda: optimizers.RMSprop(1e-3, epsilon=1e-3),
    "rmsprop-centered": lambda: optimizers.RMSprop(1e-3, centered=True, epsilon=1e-3),
    "rmsprop-momentum": lambda: optimizers.RMSprop(1e-3, momentum=0.9),
    "rmsprop-both": lambda: optimizers.RMSprop(1e-3, momentum=0.9, centered=True, epsilon=1e-3),
}
# Optimisers without a counterpart on the device, whose formula is a part of the program.
FORMULAS = {
    "nadam-schedule": lambda: optimizers.Nadam(schedules.ExponentialDecay(0.01, 4, 0.5)),
    "adafactor-clipped": lambda: optimizers.Adafactor(0.05, clipnorm=0.05),
    "ftrl-clipped-decay": lambda: optimizers.Ftrl(0.1, clipvalue=0.01, weight_decay=0.1),
    "lion-averaged": lambda: optimizers.Lion(0.01, use_ema=True, ema_overwrite_frequency=3),
    "sgd-accumulated": lambda: optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=4),
    "adagrad-dynamic-scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adagrad(0.1), initial_scale=1024.0, dynamic_growth_steps=3
    ),
    "subclass": lambda: OriginalRMSprop(1e-3),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_optimizer_without_a_counterpart_then_keras_own_formula_runs(name: str) -> None:
    _check_same(FORMULAS[name], FORMULAS[name])


def test_formula_when_batches_accumulate_over_replicas_then_equals_one_large_batch() -> None:
    """Gradients of four batches are added, as those of one batch with four times the loss."""
    x, labels = models.data()
    results = []
    for is_on_ipus, rows, weight in ((False, 16, 4.0), (True, 4, 1.0)):
        models.use_ipus(2)
        with models.scope(is_on_ipus):
            model = models.mlp()
        if is_on_ipus:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        optimizer = optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0)
        steps = 4 if is_on_ipus else 1
        models.compiled(model, optimizer, loss_weights=[weight], steps_per_execution=steps)
        model.fit(x, labels, batch_size=rows, epochs=2, shuffle=False, verbose=0)
        results.append(model)
    assert models.largest_difference(*results) < NEAR
    assert int(results[1].optimizer.iterations.numpy()) == 4


def test_weights_with_a_constraint_then_keep_it_as_in_eager_keras() -> None:
    def make():
        keras.utils.set_random_seed(1)
        dense = keras.layers.Dense(3, kernel_constraint="non_neg", bias_constraint="max_norm")
        return keras.Sequential([keras.Input((12,)), dense])

    eager, _ = fitted(make, (12,), sgd, is_on_ipus=False)
    model, _ = fitted(make, (12,), sgd, is_on_ipus=True, steps=4)
    assert models.largest_difference(eager, model) < NEAR
    assert model.get_weights()[0].min() == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_when_converted_then_weights_and_its_variables_are_keras_own(name: str) -> None:
    _check_same(OPTIMIZERS[name], OPTIMIZERS[name])


def _check_same(eager_optimizer, optimizer) -> None:
    eager, _ = fitted(models.mlp, (12,), eager_optimizer, is_on_ipus=False)
    model, _ = fitted(models.mlp, (12,), optimizer, is_on_ipus=True, steps=4)
    assert models.largest_difference(eager, model) < NEAR
    pairs = zip(eager.optimizer.variables, model.optimizer.variables, strict=True)
    for wanted, variable in pairs:
        np.testing.assert_allclose(variable.numpy(), wanted.numpy(), atol=NEAR, rtol=1e-5)
    counts = [int(each.optimizer.iterations.numpy()) for each in (eager, model)]
    assert counts[0] == counts[1] > 0


def test_adamw_when_biases_are_excluded_then_only_kernels_decay() -> None:
    def optimizer():
        adamw = optimizers.AdamW(1e-3, weight_decay=0.5)
        adamw.exclude_from_weight_decay(var_names=["bias"])
        return adamw

    eager, _ = fitted(models.mlp, (12,), optimizer, is_on_ipus=False)
    model, _ = fitted(models.mlp, (12,), optimizer, is_on_ipus=True)
    everywhere, _ = fitted(
        models.mlp, (12,), lambda: optimizers.AdamW(1e-3, weight_decay=0.5), is_on_ipus=True
    )
    assert models.largest_difference(eager, model) < NEAR
    assert models.largest_difference(model, everywhere) > 1e-5


@pytest.mark.parametrize("weights", ["sample", "class"])
def test_fit_when_samples_are_weighted_then_equals_eager_keras(weights: str) -> None:
    x, labels = models.data()
    given = {
        "sample": {"sample_weight": np.linspace(0, 2, len(x), dtype=np.float32)},
        "class": {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    }[weights]
    results = []
    for is_on_ipus in (False, True):
        with models.scope(is_on_ipus):
            model = models.mlp()
        models.compiled(model, weighted_metrics=["accuracy"])
        logs = model.fit(x, labels, batch_size=4, shuffle=False, verbose=0, **given).history
        results.append((model, logs))
    (eager, wanted), (model, logs) = results
    assert models.largest_difference(eager, model) < NEAR
    for key in wanted:
        np.testing.assert_allclose(logs[key], wanted[key], atol=NEAR)


def test_fit_when_there_are_several_inputs_and_outputs_then_equals_eager_keras() -> None:
    def make():
        keras.utils.set_random_seed(1)
        inputs = {name: keras.Input((12,), name=name) for name in ("right", "left")}
        hidden = keras.layers.Concatenate()(list(inputs.values()))
        outputs = [keras.layers.Dense(3, name="kind"), keras.layers.Dense(1, name="size")]
        return keras.Model(inputs, [layer(hidden) for layer in outputs])

    x, labels = models.data()
    results = []
    for is_on_ipus in (False, True):
        with models.scope(is_on_ipus):
            model = make()
        loss = [models.cross_entropy(), "mse"]
        models.compiled(
            model,
            loss=loss,
            loss_weights=[1.0, 0.5],
            metrics=[["accuracy"], ["mae"]],
            steps_per_execution=4 if is_on_ipus else 1,
        )
        logs = model.fit(
            {"right": x[::-1].copy(), "left": x},
            [labels, x[:, :1]],
            batch_size=4,
            shuffle=False,
            verbose=0,
        ).history
        results.append((model, logs))
    (eager, wanted), (model, logs) = results
    assert models.largest_difference(eager, model) < NEAR
    assert wanted.keys() == logs.keys() and len(wanted) == 5
    for key in wanted:
        np.testing.assert_allclose(logs[key], wanted[key], atol=NEAR)


def test_fit_when_a_layer_is_frozen_and_thawed_then_equals_eager_keras() -> None:
    x, labels = models.data()
    results = []
    for is_on_ipus in (False, True):
        with models.scope(is_on_ipus):
            model = models.mlp()
        first = model.layers[0].get_weights()[0]
        for is_trained in (False, True):
            model.layers[0].trainable = is_trained
            models.compiled(model)
            model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
            assert np.array_equal(first, model.layers[0].get_weights()[0]) is not is_trained
        results.append(model)
    assert models.largest_difference(*results) < NEAR


def test_fit_when_weights_are_set_in_between_then_trains_on_from_them() -> None:
    x, labels = models.data()
    results = []
    for is_on_ipus in (False, True):
        with models.scope(is_on_ipus):
            model = models.compiled(models.mlp(), optimizers.SGD(0.1, momentum=0.9))
        model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        model.set_weights([0.5 * weight for weight in model.get_weights()])
        momentum = model.optimizer.variables[2]
        momentum.assign(momentum * 0)
        model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        results.append(model)
    assert models.largest_difference(*results) < NEAR


def test_metrics_of_the_users_own_then_see_each_batch() -> None:
    """The largest output of a batch is not a sum over rows; Keras averages it over batches."""

    def largest(y_true, y_pred):
        return keras.ops.max(y_pred)

    x, labels = models.data()
    logs = []
    for is_on_ipus in (False, True):
        with models.scope(is_on_ipus):
            model = models.compiled(models.mlp(), metrics=[largest])
        if is_on_ipus:
            model.steps_per_execution = 4
        logs.append(model.fit(x, labels, batch_size=4, shuffle=False, verbose=0).history)
    np.testing.assert_allclose(logs[1]["largest"], logs[0]["largest"], atol=NEAR)


def test_batches_one_by_one_then_equal_eager_keras() -> None:
    x, labels = models.data()
    results = []
    for is_on_ipus in (False, True):
        with models.scope(is_on_ipus):
            model = models.compiled(models.mlp())
        logs = [*model.train_on_batch(x[:4], labels[:4]), *model.test_on_batch(x[4:8], labels[4:8])]
        results.append((logs, model.predict_on_batch(x[:3])))
    (wanted, outputs), (logs, predicted) = results
    np.testing.assert_allclose(logs, wanted, atol=NEAR)
    np.testing.assert_allclose(predicted, outputs, atol=NEAR)


def test_random_layers_when_seeded_then_dropout_has_its_mean_and_scale() -> None:
    """For zero targets the loss is the mean square of the outputs: E[(d + n)²] = 1 / 0.7 + 0.25."""
    with models.SCOPE():
        inputs = keras.Input((1000,))
        hidden = keras.layers.Dropout(0.3, seed=3)(inputs)
        model = keras.Model(inputs, keras.layers.GaussianNoise(0.5, seed=4)(hidden))
        scale = keras.layers.Dense(1000, kernel_initializer="identity", trainable=False)
        bias = keras.layers.Dense(1000, kernel_initializer="zeros")(inputs)
        model = keras.Model(inputs, scale(model(inputs)) + bias)

    def mean(y_true, y_pred):
        return keras.ops.mean(y_pred)

    models.compiled(model, optimizers.SGD(0.0), "mse", metrics=[mean], steps_per_execution=2)
    ones, zeros = np.ones((16, 1000), np.float32), np.zeros((16, 1000), np.float32)
    logs = [model.fit(ones, zeros, batch_size=4, verbose=0).history for _ in range(2)]
    for each in logs:
        assert each["loss"][0] == pytest.approx(1 / 0.7 + 0.25, rel=0.03)
        assert each["mean"][0] == pytest.approx(1, rel=0.03)
    assert logs[0]["loss"] != logs[1]["loss"], "Each call draws other numbers."
    assert model.evaluate(ones, zeros, batch_size=4, verbose=0)[0] == pytest.approx(1, abs=NEAR)


def test_augmentation_when_it_flips_pictures_then_half_of_them_are() -> None:
    """Each output is the mean of the left half: 1 for an original picture, 0 for a flipped one."""
    with models.SCOPE():
        inputs = keras.Input((4, 4, 1))
        flipped = keras.layers.RandomFlip("horizontal", seed=5)(inputs)
        half = keras.ops.mean(flipped[:, :, :2], axis=(1, 2))
        model = keras.Model(inputs, half + keras.layers.Dense(1, kernel_initializer="zeros")(half))
    models.compiled(model, optimizers.SGD(0.0), "mse", metrics=["mae"], steps_per_execution=8)
    pictures = np.zeros((512, 4, 4, 1), np.float32)
    pictures[:, :, :2] = 1
    logs = model.fit(pictures, np.zeros((512, 1), np.float32), batch_size=32, verbose=0).history
    # The tolerance is five standard deviations of the mean of 512 coins.
    assert logs["mae"][0] == pytest.approx(0.5, abs=0.11)
    assert logs["loss"][0] == pytest.approx(logs["mae"][0], abs=NEAR)


def test_functional_model_of_its_own_class_when_made_in_a_scope_then_predicts() -> None:
    class Plain(keras.Model):
        pass

    with models.scope(True):
        given = keras.Input((6,))
        model = Plain(given, keras.layers.Dense(2)(given), name="plain")
    assert (model.count_params(), model.name) == (14, "plain")
    assert model.predict(np.ones((4, 6), np.float32), verbose=0).shape == (4, 2)


def test_keras_model_when_wrapped_by_itself_then_is_refused() -> None:
    """Keras layers would read tensors of the host, so that nothing would be trained."""
    inner = models.mlp()

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            with keras.device("ipu:0"):
                return poptorch.identity_loss(self.inner(x).sum(), "none")

    wrapper = Wrapper()
    training = poptorch.trainingModel(
        wrapper, None, poptorch.optim.SGD(wrapper.parameters(), lr=0.1)
    )
    with pytest.raises(poptorch.Error, match="reads the host's tensor of parameter .*kernel"):
        training(torch.ones(2, 12))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_hinge_when_labels_are_binary_or_not_then_trains_as_eager_keras(loss, scale) -> None:
    x, labels = models.data()
    y = (labels.reshape(-1, 1) % 2).astype("float32") * scale
    eager = models.mlp()
    with models.SCOPE():
        ours = models.mlp()
    ours.set_weights(eager.get_weights())
    logs = []
    for model in (eager, ours):
        model.compile("sgd", loss)
        logs.append(model.fit(x, y, batch_size=4, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(*logs, rtol=1e-5)
    assert models.largest_difference(eager, ours) < NEAR
