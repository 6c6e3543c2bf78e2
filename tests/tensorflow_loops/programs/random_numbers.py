"""Random numbers: their sizes, and whether they change."""

# Programs are written as their users write them.
# ruff: noqa: B905

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import program, refused


@program
def random_numbers(b: Bench) -> Any:
    queue = b.queue()

    def loop():
        for _ in tf.range(4):
            queue.enqueue(
                (
                    tf.random.normal((50,)),
                    tf.random.uniform((50,), -1, 3),
                    tf.random.truncated_normal((50,)),
                    tf.random.uniform((50,), 0, 5, tf.int32),
                    tf.nn.dropout(tf.ones((50,)), 0.5),
                )
            )

    b.run(loop)
    found = queue.dequeue()
    return [
        (
            tuple(x.shape),
            np.asarray(x).dtype.name == x.dtype,
            len(np.unique(np.asarray(x), axis=0)),
            -5 < np.min(x) and np.max(x) < 5,
            np.std(x) > 0.5,
        )
        for x in found
    ]


@program
def random_numbers_with_a_seed(b: Bench) -> Any:
    def drawn():
        return tf.random.stateless_uniform((3,), (1, 2)), tf.random.stateless_normal((3,), (3, 4))

    return b.run(drawn)


@refused("StatelessRandom")
def random_numbers_with_a_seed_of_the_device(b: Bench) -> Any:
    return b.run(lambda seed: tf.random.stateless_uniform((3,), seed), np.array([1, 2]))


@program
def reparametrized_noise(b: Bench) -> Any:
    encoder, decoder, data = b.net(4), b.net(3, inputs=2, seed=1), iter(b.data())
    optimizer, queue = b.keras.optimizers.Adam(0.01), b.queue()

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            with tf.GradientTape() as tape:
                mean, logvar = tf.split(encoder(x), 2, axis=1)
                noise = tf.concat([y, -y], 1)
                z = mean + tf.exp(0.5 * logvar) * noise
                near = tf.reduce_mean(tf.reduce_sum((x - decoder(z)) ** 2, 1))
                kl = -0.5 * tf.reduce_mean(1 + logvar - tf.square(mean) - tf.exp(logvar))
                loss = near + kl
            variables = encoder.trainable_variables + decoder.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue((near, kl))

    b.run(loop, data)
    return queue.dequeue(), encoder.get_weights(), decoder.get_weights()
