"""Runs small programs on plain TensorFlow, or on the IPU, through one interface.

A program is a function of a bench. It returns a structure of tensors, arrays and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, FEATURES = 4, 3


@dataclass(frozen=True)
class Program:
    """A small program, and the refusal that is expected of the IPU.

    Attributes:
        make: function of a bench that returns results.
        refused: pattern of the expected error; empty if the program runs.
    """

    make: Callable[[Bench], Any]
    refused: str = ""


class Bench:
    """Plain TensorFlow: `run` calls a `tf.function`."""

    def __init__(self) -> None:
        self.keras = tf.keras

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a function, and returns its result."""
        if not hasattr(function, "python_function"):
            function = tf.function(function)
        return function(*args, **kwargs)

    def queue(self) -> Any:
        """Returns an object with `enqueue` and `dequeue`."""
        return _PlainQueue()

    def arrays(self, batches: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns samples and targets."""
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(batches * ROWS, FEATURES)).astype(np.float32)
        return x, np.tanh(x @ np.array([[1.0], [-2.0], [0.5]], np.float32))

    def data(self, batches: int = 4, seed: int = 0) -> Any:
        """Returns a data set of batches of samples and targets."""
        found = tf.data.Dataset.from_tensor_slices(self.arrays(batches, seed))
        return found.batch(ROWS, drop_remainder=True)

    def batches(self, count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the batches of `data` as arrays."""
        x, y = self.arrays(count)
        starts = range(0, len(x), ROWS)
        return [(x[start : start + ROWS], y[start : start + ROWS]) for start in starts]

    def net(self, *sizes: int, inputs: int = FEATURES, seed: int = 0, **last: Any) -> Any:
        """Returns dense layers of these sizes, with tanh between them."""
        layers = tf.keras.layers
        dense = [layers.Dense(size, activation="tanh") for size in sizes[:-1]]
        model = tf.keras.Sequential(
            [tf.keras.Input((inputs,)), *dense, layers.Dense(sizes[-1], **last)]
        )
        generator = np.random.default_rng(seed)
        model.set_weights(
            [generator.normal(size=x.shape).astype(np.float32) / 2 for x in model.get_weights()]
        )
        return model

    def weights(self, shape: Any, seed: int = 0) -> Any:
        """Returns a variable of TensorFlow."""
        generator = np.random.default_rng(seed)
        return tf.Variable(generator.normal(size=shape).astype(np.float32) / 2)


class DeviceBench(Bench):
    """The IPU: `run` is that of an `IPUStrategy`, in whose scope programs are made."""

    def __init__(self, strategy: Any, queue: Callable[[], Any]) -> None:
        super().__init__()
        self._strategy, self._queue = strategy, queue

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a function, and returns its result."""
        return self._strategy.run(function, args=args, kwargs=kwargs)

    def queue(self) -> Any:
        """Returns an outfeed queue."""
        return self._queue()


class _PlainQueue:
    def __init__(self) -> None:
        self._rows: list[list[Any]] = []
        self._form: Any = None

    def enqueue(self, values: Any) -> None:
        self._form = tf.nest.map_structure(lambda x: 0, values)
        leaves = [tf.convert_to_tensor(each) for each in tf.nest.flatten(values)]
        tf.py_function(lambda *x: self._rows.append([each.numpy() for each in x]), leaves, [])

    def dequeue(self) -> Any:
        leaves = [np.stack(each) for each in zip(*self._rows, strict=True)]
        return tf.nest.pack_sequence_as(self._form, leaves)


def results_of(program: Program, bench: Bench) -> list[np.ndarray]:
    """Returns the leaves of a program's results."""
    found = tf.nest.flatten(program.make(bench), expand_composites=False)
    return [_array(each) for each in found if each is not None]


def _array(value: Any) -> np.ndarray:
    value = getattr(value, "value", value) if hasattr(value, "path") else value
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
