"""Gradients of TensorFlow's tapes through calls of Keras on the host."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def dense() -> keras.layers.Layer:
    programs.strategy()
    layer = keras.layers.Dense(3)
    layer.build(X.shape)
    layer.set_weights([KERNEL, np.zeros(3, np.float32)])
    return layer


class Mixed(keras.layers.Layer):
    """A layer of a program, in which functions of TensorFlow and a layer of Keras take turns."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x):
        assert tf.executing_eagerly() and isinstance(x, tf.Tensor)
        return tf.square(self.inner(tf.sin(x))) + tf.reduce_sum(x)


def as_mixed(x):
    return tf.square(tf.sin(x) @ KERNEL) + tf.reduce_sum(x)


# Calls of Keras, and the same functions in TensorFlow.
CALLS = {
    "layer": (dense, lambda x: x @ KERNEL),
    "layer of the program": (lambda: Mixed(dense()), as_mixed),
    "model": (
        lambda: keras.Sequential([keras.Input((4,)), dense(), keras.layers.ReLU()]),
        lambda x: tf.nn.relu(x @ KERNEL),
    ),
    "function": (
        lambda: lambda x: keras.ops.concatenate([x, keras.ops.square(x)], axis=0),
        lambda x: tf.concat([x, tf.square(x)], 0),
    ),
    "loss": (
        lambda: lambda x: keras.losses.MeanSquaredError()(np.ones_like(X), x),
        lambda x: tf.reduce_mean(tf.square(x - 1.0)),
    ),
    "operator of a weight": (lambda: dense().kernel.__rmatmul__, lambda x: x @ KERNEL),
    "value of a weight": (lambda: lambda x: x @ dense().kernel.value, lambda x: x @ KERNEL),
}


def gradient(function, source, persistent: bool = False):
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch(source)
        value = tf.reduce_sum(tf.sin(function(source) * 2.0))
    return tape.gradient(value, source)


@pytest.mark.parametrize("name", CALLS)
def test_call_of_keras_then_has_the_gradient_of_the_same_function(name: str) -> None:
    make, same = CALLS[name]
    for source in (tf.constant(X), tf.Variable(X)):
        found = gradient(make(), source)
        np.testing.assert_allclose(found, gradient(same, source), rtol=2e-5, atol=2e-6)


def test_source_when_no_call_depends_on_it_then_has_no_gradient() -> None:
    layer, x = dense(), tf.constant(X)
    assert gradient(lambda _: layer(X), x) is None
    both = gradient(lambda x: layer(x) + tf.reduce_sum(x), x)
    np.testing.assert_allclose(both, gradient(lambda x: x @ KERNEL + tf.reduce_sum(x), x), 2e-5)


def test_gradient_of_a_gradient_then_is_refused_by_name() -> None:
    layer, x = dense(), tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = layer(x) ** 2
        norm = tf.reduce_sum(tape.gradient(value, x) ** 2)
    with pytest.raises(poptorch.Error, match="gradient of a gradient .* strategy.run"):
        outer.gradient(norm, x)


def test_jacobian_then_is_refused_unless_it_is_computed_row_by_row() -> None:
    layer, x = dense(), tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        value = layer(x)
    with pytest.raises(poptorch.Error, match="jacobian .* experimental_use_pfor=False"):
        tape.jacobian(value, x)
    found = tape.jacobian(value, x, experimental_use_pfor=False)
    np.testing.assert_allclose(found[1, :, 1], KERNEL.T, rtol=1e-6)


def test_variable_of_tensorflow_in_a_layer_then_its_gradient_is_refused_by_name() -> None:
    class Scaled(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.factor = tf.Variable(2.0)

        def call(self, x):
            return x * self.factor

    programs.strategy()
    layer, x = Scaled(), tf.constant(X)
    np.testing.assert_array_equal(layer(x), X * 2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = layer(x)
    with pytest.raises(poptorch.Error, match="a variable of TensorFlow .* strategy.run"):
        tape.gradient(value, layer.factor)


def test_function_of_tensorflow_that_calls_keras_then_is_refused_by_name() -> None:
    layer = dense()
    with pytest.raises(poptorch.Error, match="tf.function.* that calls Keras .* @tf.function off"):
        tf.function(layer)(tf.constant(X))


def test_optimizer_of_keras_then_updates_variables_of_tensorflow() -> None:
    programs.strategy()
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
    optimizer = keras.optimizers.Adam(0.1, epsilon=0.0)
    for steps in (1, 2):
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanAbsoluteError()(tf.zeros(2), variables[0] * variables[1])
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        # The gradients are positive and hardly change: Adam moves each element by its rate.
        np.testing.assert_allclose(variables[0].numpy(), [1 - 0.1 * steps, 2 - 0.1 * steps], 1e-3)
        np.testing.assert_allclose(variables[1].numpy(), 3 - 0.1 * steps, 1e-3)
    assert int(optimizer.iterations) == 2
    with pytest.raises(poptorch.Error, match="tf.IndexedSlices .* tf.convert_to_tensor"):
        optimizer.apply([tf.IndexedSlices([1.0], [0], [2]), tf.constant(0.0)], variables)
    np.testing.assert_allclose(variables[1].numpy(), 2.8, 1e-3)
