"""Programs of fields of use, for example reinforcement learning and language."""

# Programs are written as their users write them.
# ruff: noqa: B905

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program, refused, step


@program
def policy_gradient(b: Bench) -> Any:
    policy, data = b.net(4, 2), iter(b.data())
    optimizer = b.keras.optimizers.Adam(0.02)

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            actions = tf.cast(y[:, 0] > 0, tf.int32)
            rewards = tf.reverse(tf.cumsum(tf.reverse(y[:, 0], [0])), [0])
            rewards = (rewards - tf.reduce_mean(rewards)) / (tf.math.reduce_std(rewards) + 1e-8)
            with tf.GradientTape() as tape:
                logs = tf.nn.log_softmax(policy(x))
                chosen = tf.gather_nd(logs, tf.stack([tf.range(4), actions], axis=1))
                entropy = -tf.reduce_sum(tf.exp(logs) * logs, 1)
                loss = -tf.reduce_mean(chosen * rewards + 0.01 * entropy)
            variables = policy.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    b.run(loop, data)
    return policy.get_weights()


@program
def embeddings(b: Bench) -> Any:
    table, data = b.weights((6, 2)), iter(b.data())
    optimizer = b.keras.optimizers.SGD(0.5)
    layer = b.keras.layers.Embedding(6, 2, embeddings_initializer="ones")

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            ids = tf.cast(tf.abs(x[:, :2]) * 2.0, tf.int32)
            with tf.GradientTape(persistent=True) as tape:
                found = tf.nn.embedding_lookup(table, ids)
                loss = tf.reduce_mean(tf.square(found - y[:, :, None]))
                other = tf.reduce_mean(tf.square(layer(ids) * found))
            slope = tf.convert_to_tensor(tape.gradient(loss, table))
            table.assign_sub(0.1 * slope)
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(other, variables), variables))

    b.run(loop, data)
    return table, layer.get_weights()


@program
def contrastive_loss(b: Bench) -> Any:
    model, data = b.net(4, 2), iter(b.data())
    optimizer, queue = b.keras.optimizers.SGD(0.2), b.queue()

    def loop(data):
        for _ in tf.range(3):
            x, _ = next(data)
            with tf.GradientTape() as tape:
                one = tf.math.l2_normalize(model(x), axis=1)
                other = tf.math.l2_normalize(model(x * 0.9), axis=1)
                scores = tf.matmul(one, other, transpose_b=True) / 0.1
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(4), scores)
                )
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), model.get_weights()


@program
def convolution_by_functions(b: Bench) -> Any:
    kernel, bias, data = b.weights((2, 2, 1, 2)), tf.Variable(tf.zeros(2)), iter(b.data())

    def loop(data):
        for _ in tf.range(2):
            x, y = next(data)
            image = tf.reshape(x, (1, 4, 3, 1))
            with tf.GradientTape() as tape:
                found = tf.nn.bias_add(tf.nn.conv2d(image, kernel, 1, "SAME"), bias)
                found = tf.nn.max_pool2d(tf.nn.relu(found), 2, 2, "SAME")
                loss = tf.reduce_mean(found) + tf.reduce_mean(tf.image.resize(found, (3, 3)))
            for v, g in zip((kernel, bias), tape.gradient(loss, (kernel, bias))):
                v.assign_sub(g)

    b.run(loop, data)
    return kernel, bias


@program
def scattered_updates(b: Bench) -> Any:
    def changed(x):
        rows = tf.constant([[1], [1], [3]])
        added = tf.tensor_scatter_nd_add(x, rows, tf.ones((3, 3)))
        placed = tf.tensor_scatter_nd_update(x, [[0]], [[7.0, 8.0, 9.0]])
        return (
            added,
            placed,
            tf.scatter_nd(rows, tf.ones((3, 2)), (4, 2)),
            tf.math.segment_sum(x, [0, 0, 1, 1]),
        )

    return b.run(changed, tf.constant(b.arrays(1)[0]))


@refused("ResourceScatterNdAdd")
def updates_of_rows_of_variables(b: Bench) -> Any:
    v = b.weights((4, 2))

    def change(x):
        v.scatter_nd_add([[1], [3]], x)
        v[0].assign(x[0])
        v.scatter_update(tf.IndexedSlices(x[:1], [2]))
        return v * 1.0

    return b.run(change, tf.constant([[1.0, 2.0], [3.0, 4.0]])), v


@program
def loss_class_and_metric_class(b: Bench) -> Any:
    class Huberish(b.keras.losses.Loss):
        def call(self, y_true, y_pred):
            error = tf.abs(y_true - y_pred)
            return tf.reduce_mean(tf.where(error < 1.0, 0.5 * error**2, error - 0.5), axis=-1)

    model, data, queue = b.net(1), iter(b.data()), b.queue()
    train = step(model, b.keras.optimizers.SGD(0.1), Huberish())

    def loop(data):
        for _ in tf.range(3):
            queue.enqueue(train(*next(data)))

    b.run(loop, data)
    return queue.dequeue(), model.get_weights()


@program
def mixed_types(b: Bench) -> Any:
    w, data = b.weights((3, 1)), iter(b.data())

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            with tf.GradientTape() as tape:
                half = tf.cast(x, tf.float16) @ tf.cast(w, tf.float16)
                loss = mse(y, tf.cast(half, tf.float32)) * 8.0
            w.assign_sub(tape.gradient(loss, w) / 80.0)

    b.run(loop, data)
    return w


@program
def strings_on_the_host(b: Bench) -> Any:
    def named(x):
        name = tf.constant("weights")
        size = tf.strings.length(name)
        return x + tf.cast(size, tf.float32)

    return b.run(named, tf.constant([1.0]))


@program
def names_of_numpy(b: Bench) -> Any:
    weights = np.array([1.0, 2.0, 3.0])

    def computed(x):
        scale = np.float32(2.0) * x
        return (
            scale + weights.astype(np.float32),
            np.pi * x,
            x * len(weights),
            weights[0] - x,
            x / np.sqrt(4.0),
        )

    return b.run(computed, tf.constant([1.0, 2.0, 3.0]))


@program
def operators(b: Bench) -> Any:
    def computed(x, n):
        return (
            x**2,
            2.0**x,
            -x,
            abs(x),
            x @ tf.transpose(x),
            x // 0.3,
            x % 0.3,
            1.0 / x,
            x > 0,
            x <= x[0],
            ~(x > 0),
            (x > 0) & (x < 1),
            (x > 0) ^ (x < 1),
            n // 2,
            n % 3,
            -n // 2,
            n & 1,
            n != 2,
            n == 2,
            x[1:, ..., ::-1],
            x[:, tf.newaxis, 0],
            x[-1],
            n[::2],
        )

    return b.run(computed, tf.constant(b.arrays(1)[0]), tf.constant([-3, 2, 7]))


@refused("float64")
def quotient_of_integers(b: Bench) -> Any:
    return b.run(lambda n: n / 2, tf.constant([-3, 2, 7]))


@program
def losses_of_a_layer(b: Bench) -> Any:
    class Penalty(b.keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * tf.reduce_sum(tf.square(x)))
            return x * 2.0

    model, data = b.net(1), iter(b.data())
    penalty, optimizer = Penalty(), b.keras.optimizers.SGD(0.05)

    def loop(data):
        values = []
        for _ in range(3):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(penalty(model(x)) - y)) + tf.add_n(penalty.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            values.append(loss)
        return tf.stack(values)

    return b.run(loop, data), model.get_weights()
