"""Keras models and data, and the comparison of two trained models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import keras
import numpy as np
from keras import layers

from poptorch_emu.keras import ipu

ROWS = 32
Array = np.ndarray

SCOPE = ipu.ipu_strategy.IPUStrategy().scope


def use_ipus(count: int | None = 1) -> None:
    """Configures `count` IPUs for the process."""
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = count
    config.configure_ipu_system()


def scope(is_on_ipus: bool):
    return SCOPE() if is_on_ipus else nullcontext()


def mlp() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="relu"),
            layers.Dense(8, activation="tanh"),
            layers.Dense(3),
        ]
    )


def convolutional() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def recurrent() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6, 5)),
            layers.LSTM(7, return_sequences=True),
            layers.GRU(4),
            layers.Dense(3),
        ]
    )


def attention() -> keras.Model:
    keras.utils.set_random_seed(1)
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 8)(tokens)
    hidden = hidden + layers.MultiHeadAttention(2, 4)(hidden, hidden)
    hidden = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(hidden))
    return keras.Model(tokens, layers.Dense(3)(hidden))


class OfItsOwnClass(keras.Model):
    """A model with its own `call`, which adds a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, kernel_regularizer="l2")
        self.last = layers.Dense(3)

    def call(self, x):
        hidden = keras.ops.relu(self.hidden(x))
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(hidden)))
        return self.last(hidden)


def of_its_own_class() -> keras.Model:
    keras.utils.set_random_seed(1)
    return OfItsOwnClass()


# Function that creates each model, and the shape of one sample.
MODELS: dict[str, tuple[Callable[[], keras.Model], tuple[int, ...]]] = {
    "mlp": (mlp, (12,)),
    "convolutional": (convolutional, (8, 8, 1)),
    "recurrent": (recurrent, (6, 5)),
    "attention": (attention, (6,)),
    "of its own class": (of_its_own_class, (12,)),
}


def data(shape: tuple[int, ...] = (12,), rows: int = ROWS) -> tuple[Array, Array]:
    """Returns random samples and labels of 3 classes; tokens for the model with attention."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=rows)
    if shape == (6,):
        return generator.integers(20, size=(rows, *shape)), labels
    return generator.normal(size=(rows, *shape)).astype(np.float32), labels


def cross_entropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: keras.Model, optimizer=None, loss=None, **settings) -> keras.Model:
    """Compiles for Keras, by default with SGD, learning rate 0.1, and accuracy as metric."""
    settings.setdefault("metrics", ["accuracy"])
    model.compile(
        keras.optimizers.SGD(0.1) if optimizer is None else optimizer,
        cross_entropy() if loss is None else loss,
        **settings,
    )
    return model


def largest_difference(one: keras.Model, other: keras.Model) -> float:
    """Returns the largest difference between two models' weights."""
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)
