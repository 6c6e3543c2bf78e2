"""Functions and classes of a program that Keras calls: they get TensorFlow's tensors."""

from __future__ import annotations

import functools

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import errors  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

X, LABELS = models.data()


class Leaky:
    """A function with a state, as an object and as a method."""

    def __call__(self, x):
        return self.computed(x)

    def computed(self, x):
        assert isinstance(x, tf.Tensor) and x.shape == list(x.shape) and x.dtype == "float32"
        return tf.nn.leaky_relu(x, 0.3)


LEAKY = {
    "object": Leaky(),
    "method": Leaky().computed,
    "partial": functools.partial(tf.nn.leaky_relu, alpha=0.3),
    "function": lambda x: tf.where(x > 0, x, 0.3 * x),
    "tf.function": tf.function(lambda x: tf.nn.leaky_relu(x, 0.3)),
    "of Keras": functools.partial(keras.ops.leaky_relu, negative_slope=0.3),
}
ACTIVATIONS = {
    **{name: (each, keras.layers.LeakyReLU(0.3)) for name, each in LEAKY.items()},
    "tf.nn.relu": (tf.nn.relu, "relu"),
    "tf.math.tanh": (tf.math.tanh, "tanh"),
}


def trained(on_ipus: bool, activation, loss="mse", regularizer=None, metrics=()):
    """Returns a model that was trained, and its logs."""
    keras.utils.set_random_seed(1)
    models.use_ipus(1)
    with models.scope(on_ipus):
        hidden = keras.layers.Dense(8, activation=activation, kernel_regularizer=regularizer)
        model = keras.Sequential([keras.Input((12,)), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=list(metrics))
    history = model.fit(X, LABELS, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return model, history.history


def check_same(own, other) -> None:
    for (model, logs), (of_keras, wanted) in zip(own, other, strict=True):
        np.testing.assert_allclose(logs["loss"], wanted["loss"], rtol=1e-5)
        assert models.largest_difference(model, of_keras) < 2e-6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_of_the_program_then_trains_as_that_of_keras(name: str) -> None:
    function, same = ACTIVATIONS[name]
    check_same(
        *([trained(on_ipus, each) for on_ipus in (True, False)] for each in (function, same))
    )
    layer = keras.layers.Dense(3, activation=function)
    assert layer.activation is function
    wanted = tf.convert_to_tensor(function(tf.constant(X)))
    np.testing.assert_allclose(keras.layers.Activation(function)(X), wanted, rtol=1e-6)


@pytest.mark.parametrize("function", [lambda w: 0.02 * tf.nn.l2_loss(w), tf.nn.l2_loss])
def test_regularizer_of_the_program_then_trains_as_that_of_keras(function) -> None:
    same = keras.regularizers.L2(float(function(tf.ones(1))))
    found = [trained(on_ipus, "relu", regularizer=function) for on_ipus in (True, False)]
    check_same(found, [trained(on_ipus, "relu", regularizer=same) for on_ipus in (True, False)])


def test_loss_and_metric_of_the_program_then_are_those_of_keras() -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.largest = self.add_weight(name="largest", initializer="zeros")

        def update_state(self, y, p, sample_weight=None) -> None:
            assert isinstance(y, tf.Tensor) and isinstance(p, tf.Tensor) and p.shape.rank == 2
            assert not tf.executing_eagerly()
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(p))))

        def result(self):
            return tf.sqrt(self.largest)

    def error(y, p):
        assert isinstance(y, tf.Tensor) and p.dtype == tf.float32 and p.shape.rank == 2
        return tf.reduce_mean(tf.square(tf.reshape(tf.cast(y, p.dtype), (-1, 1)) - p), axis=-1)

    found = [trained(each, "relu", error, metrics=[error, Largest()]) for each in (True, False)]
    check_same(found, [trained(each, "relu", "mse") for each in (True, False)])
    (_, first), (_, second) = found
    for name in ("error", "largest"):
        np.testing.assert_allclose(first[name], second[name], rtol=1e-5)
    np.testing.assert_allclose(first["error"], first["loss"], rtol=1e-5)


def test_mask_of_a_layer_on_the_host_then_the_next_layer_has_it() -> None:
    programs.strategy()
    embedding, lstm = keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.LSTM(2)
    rows = np.array([[1, 2, 0, 0], [3, 0, 0, 0]], np.int32)
    hidden = embedding(tf.constant(rows))
    np.testing.assert_array_equal(hidden._keras_mask, rows != 0)
    found = lstm(hidden)
    np.testing.assert_allclose(found[0], lstm(hidden[:1, :2])[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], lstm(hidden[1:, :1])[0], rtol=1e-5)


def test_mask_when_attention_has_used_it_then_is_gone_as_in_tensorflow() -> None:
    programs.strategy()
    embedding = keras.layers.Embedding(5, 3, mask_zero=True)
    attention = keras.layers.MultiHeadAttention(1, 2)
    hidden = embedding(tf.constant([[1, 2, 0]]))
    _, first = attention(hidden, hidden, return_attention_scores=True)
    assert first[0, 0, 0, 2] == 0 and hidden._keras_mask is None
    _, second = attention(hidden, hidden, return_attention_scores=True)
    assert second[0, 0, 0, 2] > 0


def test_step_of_the_program_on_the_host_then_gets_symbolic_tensors() -> None:
    class Doubled(keras.Sequential):
        def predict_step(self, data):
            assert isinstance(data, tf.Tensor) and not tf.executing_eagerly()
            return self(data, training=False) * 2

    model = Doubled([keras.Input((12,)), keras.layers.Dense(3)])
    found = model.predict(X, batch_size=8, verbose=0)
    np.testing.assert_allclose(found, 2 * model(X).numpy(), rtol=1e-5)


def test_function_that_keras_calls_in_its_loops_then_gets_tensors_of_tensorflow() -> None:
    programs.strategy()

    def doubled(row):
        assert isinstance(row, tf.Tensor)
        return tf.multiply(row, 2.0)

    for function in (keras.ops.map, keras.ops.vectorized_map):
        np.testing.assert_array_equal(function(doubled, X), X * 2)
    carry, sums = keras.ops.scan(
        lambda c, x: (doubled(c) + x, doubled(x)), tf.constant(1.0), X[0, :2]
    )
    np.testing.assert_allclose(carry, (2.0 + X[0, 0]) * 2 + X[0, 1], rtol=1e-6)
    np.testing.assert_array_equal(sums, X[0, :2] * 2)
    assert all(isinstance(x, tf.Tensor) for x in keras.tree.map_structure(keras.ops.relu, [X, X]))


def test_value_of_a_weight_then_is_a_variable_of_tensorflow() -> None:
    programs.strategy()
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    value, wanted = layer.kernel.value, layer.get_weights()[0]
    assert (
        isinstance(value, tf.Variable) and tf.is_tensor(value) and not isinstance(value, tf.Tensor)
    )
    assert value.shape == [4, 3] and value.dtype == tf.float32 and value.dtype.name == "float32"
    np.testing.assert_allclose(tf.reduce_sum(value * 2.0), 2 * wanted.sum(), rtol=1e-5)
    np.testing.assert_allclose(keras.ops.matmul(X[:, :4], value), X[:, :4] @ wanted, rtol=1e-5)
    value.scatter_nd_add([[1]], [[1.0, 2.0, 3.0]])
    wanted[1] += [1, 2, 3]
    np.testing.assert_array_equal(layer.kernel.numpy(), wanted)
    layer.kernel.assign(tf.zeros((4, 3)))
    assert float(tf.reduce_max(abs(value))) == 0
    value.assign_add(tf.ones((4, 3)))
    np.testing.assert_array_equal(layer.get_weights()[0], np.ones((4, 3)))
    layer.kernel[1:, 0].assign([5.0, 6.0, 7.0])
    np.testing.assert_array_equal(value[:, 0], [1, 5, 6, 7])
    assert int(keras.optimizers.SGD(0.1).iterations.value) == 0


def test_functions_of_this_package_then_are_left_as_they_are() -> None:
    """Modules of operations import functions, such as those of errors, which belong to others."""
    programs.strategy()
    assert not hasattr(errors.compiler_error, "__wrapped__")
    assert hasattr(ipu.nn_ops.gelu, "__wrapped__")
    assert isinstance(ipu.nn_ops.gelu(tf.constant(X)), tf.Tensor)
