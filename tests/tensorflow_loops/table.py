"""The table of small programs, and the parts that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_loops.bench import Bench, Program

PROGRAMS: dict[str, Program] = {}


def program(make: Callable[[Bench], Any]) -> Callable[[Bench], Any]:
    """Adds a program to the table."""
    PROGRAMS[make.__name__] = Program(make)
    return make


def refused(pattern: str) -> Callable[[Callable[[Bench], Any]], Callable[[Bench], Any]]:
    """Adds a program that the IPU refuses with a message that has the pattern."""

    def add(make: Callable[[Bench], Any]) -> Callable[[Bench], Any]:
        PROGRAMS[make.__name__] = Program(make, pattern)
        return make

    return add


def mse(y: Any, found: Any) -> Any:
    return tf.reduce_mean(tf.square(y - found))


def step(model: Any, optimizer: Any, loss: Any = mse) -> Callable[..., Any]:
    """Returns a function that trains with one batch."""

    def train(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return train
