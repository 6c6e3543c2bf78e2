"""TensorFlow data, models, and eager loops of Keras on PyTorch for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
import torch
from support import keras_models as models
from support.library_calls import as_library

from poptorch_emu.keras import ipu

ROWS = 4
Array = np.ndarray
Batch = tuple[torch.Tensor, torch.Tensor]


def strategy(replicas: int = 1, **settings) -> ipu.ipu_strategy.IPUStrategy:
    models.use_ipus(replicas)
    return ipu.ipu_strategy.IPUStrategy(**settings)


def arrays(batches: int) -> tuple[Array, Array]:
    x, labels = models.data(rows=batches * ROWS)
    return x, labels.astype(np.int32)


def dataset(batches: int = 16, *, repeats: bool = True) -> tf.data.Dataset:
    """Returns batches of samples and labels, repeated without end by default."""
    found = tf.data.Dataset.from_tensor_slices(arrays(batches)).batch(ROWS, drop_remainder=True)
    return found.repeat() if repeats else found


def batches_of(count: int, of: int = 16) -> list[Batch]:
    """Returns the first batches of `dataset`."""
    x, labels = (torch.from_numpy(each) for each in arrays(of))
    starts = [number % of * ROWS for number in range(count)]
    return [(x[start : start + ROWS], labels[start : start + ROWS]) for start in starts]


@as_library
def eager_losses(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    batches: Sequence[Sequence[Batch]],
    loss: Callable | None = None,
) -> list[float]:
    """Trains with the sum of the gradients of each update's batches; returns each loss."""
    loss = loss or models.cross_entropy()
    losses = []
    for together in batches:
        model.zero_grad()
        for x, labels in together:
            value = loss(labels, model(x, training=True))
            value.backward()
            losses.append(value.item())
        trained = model.trainable_variables
        with torch.no_grad():
            optimizer.apply([variable.value.grad for variable in trained], trained)
    return losses


def step(model, optimizer, loss=None):
    """Returns a function that trains with one batch and returns the loss."""
    loss = loss or models.cross_entropy()

    def train(x, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return train
