"""Data sets and their options."""

# Programs are written as their users write them.

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program


@program
def options_of_data(b: Bench) -> Any:
    x, _ = b.arrays()
    data = (
        tf.data.Dataset.from_tensor_slices({"x": x})
        .shuffle(8, seed=3)
        .skip(2)
        .map(lambda each: {"x": each["x"] * 2.0, "n": tf.cast(1, tf.int64)}, num_parallel_calls=2)
        .repeat(2)
        .batch(5, drop_remainder=True)
        .take(3)
        .cache()
        .prefetch(tf.data.AUTOTUNE)
    )
    iterator, queue = iter(data), b.queue()

    def loop(iterator):
        for _ in tf.range(3):
            each = next(iterator)
            queue.enqueue((tf.reduce_sum(each["x"], 0), tf.reduce_sum(each["n"])))

    b.run(loop, iterator)
    return queue.dequeue()


@program
def elements_as_arguments(b: Bench) -> Any:
    w, losses = b.weights((3, 1)), []

    @tf.function
    def train(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = mse(y, x @ w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    for batch in b.batches():
        losses.append(b.run(train, batch))
    return losses, w


@program
def two_iterators(b: Bench) -> Any:
    one, other, queue = iter(b.data(8)), iter(b.data(seed=2)), b.queue()

    def loop(one, other):
        for _ in tf.range(3):
            x, _ = next(one)
            y, _ = next(other)
            z, _ = next(one)
            queue.enqueue((tf.reduce_sum(x), tf.reduce_sum(y), tf.reduce_sum(z)))

    b.run(loop, one, other)
    return queue.dequeue()


@program
def iterator_of_two_runs(b: Bench) -> Any:
    data, queue = iter(b.data(5)), b.queue()

    @tf.function
    def loop(data, n):
        for _ in tf.range(n):
            queue.enqueue(tf.reduce_sum(next(data)[0]))

    b.run(loop, data, 2)
    b.run(loop, data, 3)
    return queue.dequeue()


@program
def optional_elements(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        x, _ = data.get_next()
        return tf.reduce_sum(x)

    return b.run(loop, data)
