"""Conditions and masks."""

# Programs are written as their users write them.
# ruff: noqa: B023

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import program, refused


@program
def condition_of_python(b: Bench) -> Any:
    def scaled(x, mode="train", factor=None, *, training=True):
        if mode == "train" and training:
            x = x * 2.0
        if factor is not None:
            x = x * factor
        return x

    x = tf.constant([1.0, 2.0])
    return (
        b.run(scaled, x),
        b.run(scaled, x, "test"),
        b.run(scaled, x, mode="train", factor=3.0),
        b.run(scaled, x, training=False, factor=tf.constant(4.0)),
    )


@program
def condition_of_a_constant(b: Bench) -> Any:
    def power(x):
        count = tf.constant(0)
        while count < 3:
            x, count = x * 2.0, count + 1
        return x if tf.shape(x)[0] == 2 else -x

    return b.run(power, tf.constant([1.0, 2.0]))


@program
def cond_on_the_device(b: Bench) -> Any:
    data, queue = iter(b.data()), b.queue()

    def loop(data):
        for _ in tf.range(4):
            x, _ = next(data)
            queue.enqueue(tf.cond(tf.reduce_sum(x) > 0, lambda: x[0] * 2.0, lambda: x[1] - 5.0))

    b.run(loop, data)
    return queue.dequeue()


@refused("result with a gradient")
def cond_with_a_gradient(b: Bench) -> Any:
    w = b.weights((3, 1))

    def loss(x):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(x @ w)
            y = tf.cond(y > 0, lambda: y, lambda: tf.exp(y))
        return tape.gradient(y, w)

    return b.run(loss, tf.constant(b.arrays(1)[0]))


@refused("assignment in tf.cond")
def cond_that_assigns(b: Bench) -> Any:
    w = tf.Variable(1.0)

    def change(x):
        tf.cond(tf.reduce_sum(x) > 0, lambda: w.assign(2.0), lambda: w.assign(3.0))

    b.run(change, tf.constant([1.0]))
    return w


@program
def cond_by_the_counter(b: Bench) -> Any:
    queue = b.queue()

    def loop():
        for i in tf.range(5):
            queue.enqueue(tf.where(tf.equal(i % 2, 0), 10 * i, -i))

    b.run(loop)
    return queue.dequeue()


@program
def case_of_a_number(b: Bench) -> Any:
    def chosen(x, n):
        return tf.case([(tf.constant(n > 1), lambda: x)], default=lambda: -x)

    return b.run(chosen, tf.constant([1.0, 2.0]), 2)


@program
def masks(b: Bench) -> Any:
    def masked(x, lengths):
        mask = tf.sequence_mask(lengths, 3)
        kept = tf.where(mask, x, tf.zeros_like(x))
        mean = tf.reduce_sum(kept, 1) / tf.cast(
            tf.reduce_sum(tf.cast(mask, tf.int32), 1), tf.float32
        )
        filled = tf.where(mask, x, -1e9)
        return (
            kept,
            mean,
            tf.nn.softmax(filled),
            tf.math.count_nonzero(mask),
            tf.boolean_mask(x, [True, False, True, True]),
        )

    return b.run(masked, tf.constant(b.arrays(1)[0]), np.array([1, 2, 3, 3], np.int32))


@refused("Where")
def mask_of_the_device(b: Bench) -> Any:
    return b.run(lambda x: tf.boolean_mask(x, x > 0), tf.constant([1.0, -1.0]))


@program
def causal_attention(b: Bench) -> Any:
    def attend(x):
        mask = tf.linalg.band_part(tf.ones((4, 4)), -1, 0)
        scores = tf.matmul(x, x, transpose_b=True) / tf.sqrt(3.0) + (1.0 - mask) * -1e9
        return tf.einsum("ij,jk->ik", tf.nn.softmax(scores), x)

    return b.run(attend, tf.constant(b.arrays(1)[0]))
