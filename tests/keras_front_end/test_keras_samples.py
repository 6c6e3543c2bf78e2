"""Layers, losses, metrics and initializers have the values and gradients of Keras on TensorFlow.

`python -m keras_samples` (`make test-tensorflow`) compares all samples, here a part of them.
"""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")

from keras_samples.check import differences  # noqa: E402
from keras_samples.samples import all_samples  # noqa: E402
from support.library_calls import as_library  # noqa: E402

pytestmark = pytest.mark.feature("Keras: layers, losses, metrics", fidelity="exact")

# Every which sample is taken, so that the test takes some seconds; prime, to vary the arguments.
EVERY = 17


def test_samples_then_have_the_values_of_keras_on_tensorflow() -> None:
    samples = all_samples(["layers", "losses", "metrics", "initializers"])
    assert len({(each.room, each.name) for each in samples}) > 150
    assert differences(samples[::EVERY]) == []


@as_library
def test_stateful_layer_when_it_learns_on_the_host_then_its_first_states_are_kept() -> None:
    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2, 5, 4)), "float32")
    plain = keras.layers.LSTM(3)
    stateful = keras.layers.LSTM(3, stateful=True)
    first = plain(x)
    stateful.build(x.shape)
    stateful.set_weights([*plain.get_weights(), *stateful.get_weights()[3:]])
    outputs = [stateful(x), stateful(x)]  # The first states are zeros; the second ones are not.
    assert not np.allclose(*map(keras.ops.convert_to_numpy, outputs))
    first.sum().backward()
    outputs[0].sum().backward()
    for one, other in zip(plain.trainable_weights, stateful.trainable_weights, strict=True):
        np.testing.assert_array_equal(one.value.grad, other.value.grad)


def test_layer_norm_when_axes_are_not_in_order_then_factors_are_those_of_tensorflow() -> None:
    """TensorFlow reads the factors row by row into the axes of the input, in their order there."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 6, 5, 4)).astype(np.float32)
    layer = keras.layers.LayerNormalization(axis=[-1, 1], epsilon=0.1)
    layer.build(x.shape)
    layer.set_weights([generator.normal(size=each.shape) for each in layer.weights])
    gamma, beta = (np.reshape(each, (1, 6, 1, 4)) for each in layer.get_weights())
    variance = x.var((1, 3), keepdims=True)
    wanted = (x - x.mean((1, 3), keepdims=True)) / np.sqrt(variance + 0.1) * gamma + beta
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), wanted, atol=1e-5)
