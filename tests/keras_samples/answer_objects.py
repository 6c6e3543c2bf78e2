"""The objects that expressions name: layers, variables, optimizers, models and functions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def objects(names: dict[str, Any], spy: Any) -> dict[str, Any]:
    """Returns the objects that expressions name."""
    layers = keras.layers

    class Own(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(4, 3), regularizer="l2")

        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.sum(x))
            return keras.ops.matmul(x, self.kernel) * 2

    class GivenOwn(layers.Layer):
        call = spy(lambda self, x: keras.ops.relu(x), skip=1)

    class GivenDense(layers.Dense):
        def call(self, x: Any) -> Any:
            return spy(lambda y: y * 2)(super().call(x))

    class GivenModel(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(2)

        def call(self, x: Any) -> Any:
            return spy(lambda y: y * 2)(self.inner(x))

    class MaskedSum(layers.Layer):
        supports_masking = True

        def call(self, x: Any, mask: Any = None) -> Any:
            return spy(lambda x, mask: keras.ops.sum(x, 1))(x, mask)

    x, a, b = keras.Input((4,)), keras.Input((4,), name="a"), keras.Input((4,), name="b")
    hidden = layers.Dense(3, activation="tanh", kernel_regularizer="l2")(x)
    model = keras.Model(x, layers.Dense(2, name="last")(hidden))
    model.compile("adam", "mse", metrics=["mae"])
    found = {
        "dense": layers.Dense(3, kernel_regularizer="l2"), "own": Own(), "given_own": GivenOwn(),
        "given_dense": GivenDense(3), "embedding": layers.Embedding(5, 4, mask_zero=True),
        "lstm": layers.LSTM(3, return_sequences=True), "plain_lstm": layers.LSTM(3),
        "gru": layers.GRU(3, return_state=True), "cell": layers.LSTMCell(3),
        "gru_cell": layers.GRUCell(3), "bidirectional": layers.Bidirectional(layers.LSTM(2)),
        "time_distributed": layers.TimeDistributed(layers.Dense(2)),
        "attention": layers.MultiHeadAttention(2, 2), "conv": layers.Conv2D(2, 2),
        "normed": layers.BatchNormalization(), "layer_norm": layers.LayerNormalization(),
        "stateful": layers.LSTM(3, stateful=True), "masked_sum": MaskedSum(),
        "gaussian": layers.GaussianNoise(0.1, seed=1), "normalization": layers.Normalization(),
        "model": model, "given_model": GivenModel(), "two": keras.Model(x, [hidden, x * 2]),
        "sequence": keras.Sequential([layers.Dense(3), layers.ReLU()]),
        "function": keras.Function(x, keras.ops.relu(x) + 1),
        "named": keras.Model({"a": a, "b": b}, {"sum": a + b}),
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "scheduled": keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)),
        "seeds": keras.random.SeedGenerator(1),
        "counter": keras.Variable(3, dtype="int32", trainable=False),
        "flags": keras.Variable(np.array([True, False]), dtype="bool", trainable=False),
        "flag": keras.Variable(True, dtype="bool", trainable=False), "scale": keras.Variable(0.5),
    }  # fmt: skip
    f34, seq = names["f34"], names["seq"]
    found["normalization"].adapt(f34)
    for name in ("dense", "own", "given_own", "given_dense", "given_model", "sequence", "normed",
                 "layer_norm"):  # fmt: skip
        found[name](f34)
    for name in ("lstm", "plain_lstm", "gru", "bidirectional", "time_distributed", "stateful"):
        found[name](seq)
    found["attention"](seq, seq)
    found["conv"](names["img"])
    found["embedding"](names["i34"])
    found["cell"](f34, found["cell"].get_initial_state(3))
    found["gru_cell"](f34, found["gru_cell"].get_initial_state(3))
    found["stateful"].reset_states()
    found["kernel"] = found["dense"].kernel
    found["optimizer"].build([found["kernel"]])
    numbers = np.random.default_rng(8)
    for each in found.values():
        if isinstance(each, keras.Layer) and each.built and not each.name.startswith("normal"):
            each.set_weights([abs(numbers.normal(size=v.shape)) * 0.5 for v in each.weights])
    return found
