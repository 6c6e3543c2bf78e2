"""Training loops with one optimizer or several, and with tapes of many forms."""

# Programs are written as their users write them.
# ruff: noqa: B023, B905

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program, step


@program
def sgd_with_momentum(b: Bench) -> Any:
    model, queue, data = b.net(5, 1), b.queue(), iter(b.data())
    train = step(model, b.keras.optimizers.SGD(0.1, momentum=0.9))

    def loop(data, n):
        for _ in tf.range(n):
            queue.enqueue(train(*next(data)))

    b.run(loop, data, 4)
    return queue.dequeue(), model.get_weights()


@program
def gan_with_two_optimizers(b: Bench) -> Any:
    generator, critic = b.net(4, 3, inputs=2), b.net(4, 1, seed=1)
    adam = [b.keras.optimizers.Adam(0.01, beta_1=0.5) for _ in range(2)]
    entropy = b.keras.losses.BinaryCrossentropy(from_logits=True)
    queue, data = b.queue(), iter(b.data())

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            noise = x[:, :2]
            with tf.GradientTape() as one, tf.GradientTape() as other:
                made = generator(noise, training=True)
                real, fake = critic(x, training=True), critic(made, training=True)
                loss_g = entropy(tf.ones_like(fake), fake)
                loss_c = entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(fake), fake)
            grads_g = one.gradient(loss_g, generator.trainable_variables)
            grads_c = other.gradient(loss_c, critic.trainable_variables)
            adam[0].apply_gradients(zip(grads_g, generator.trainable_variables))
            adam[1].apply_gradients(zip(grads_c, critic.trainable_variables))
            queue.enqueue((loss_g, loss_c))

    b.run(loop, data)
    return queue.dequeue(), generator.get_weights(), critic.get_weights()


@program
def gan_trains_the_critic_first(b: Bench) -> Any:
    generator, critic = b.net(3, inputs=2), b.net(4, 1, seed=1)
    sgd = [b.keras.optimizers.SGD(0.1) for _ in range(2)]
    data = iter(b.data())

    def loop(data):
        for _ in tf.range(3):
            x, _ = next(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(critic(generator(x[:, :2]))) - tf.reduce_mean(critic(x))
            variables = critic.trainable_variables
            sgd[0].apply_gradients(zip(tape.gradient(loss, variables), variables))
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(critic(generator(x[:, :2])))
            variables = generator.trainable_variables
            sgd[1].apply_gradients(zip(tape.gradient(loss, variables), variables))

    b.run(loop, data)
    return generator.get_weights(), critic.get_weights()


@program
def gradient_penalty(b: Bench) -> Any:
    critic, data = b.net(4, 1), iter(b.data())
    optimizer, queue = b.keras.optimizers.Adam(0.01), b.queue()

    def loop(data):
        for _ in tf.range(3):
            x, _ = next(data)
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    score = critic(x, training=True)
                slopes = inner.gradient(score, x)
                norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1))
                loss = tf.reduce_mean(score) + 10.0 * tf.reduce_mean((norm - 1.0) ** 2)
            found = tape.gradient(loss, critic.trainable_variables)
            optimizer.apply_gradients(
                [(g, v) for g, v in zip(found, critic.trainable_variables) if g is not None]
            )
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), critic.get_weights()


@program
def accumulation_by_hand(b: Bench) -> Any:
    model, data = b.net(4, 1), iter(b.data(6))
    optimizer = b.keras.optimizers.Adam(0.01)

    def loop(data):
        for _ in tf.range(2):
            total = [tf.zeros_like(v) for v in model.trainable_variables]
            for _ in range(3):
                x, y = next(data)
                with tf.GradientTape() as tape:
                    loss = mse(y, model(x)) / 3.0
                found = tape.gradient(loss, model.trainable_variables)
                total = [t + g for t, g in zip(total, found)]
            optimizer.apply_gradients(zip(total, model.trainable_variables))

    b.run(loop, data)
    return model.get_weights()


@program
def accumulation_in_variables(b: Bench) -> Any:
    model, data = b.net(1), iter(b.data())
    optimizer = b.keras.optimizers.SGD(0.1)
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in model.trainable_variables]

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, model(x))
            for total, g in zip(sums, tape.gradient(loss, model.trainable_variables)):
                total.assign(0.5 * total + g)
            optimizer.apply_gradients(zip(sums, model.trainable_variables))

    b.run(loop, data)
    return model.get_weights(), sums


@program
def moving_average_of_weights(b: Bench) -> Any:
    model, data = b.net(1), iter(b.data())
    train = step(model, b.keras.optimizers.SGD(0.2))
    average = [tf.Variable(v, trainable=False) for v in model.get_weights()]

    def loop(data):
        for _ in tf.range(4):
            train(*next(data))
            for mean, v in zip(average, model.trainable_variables):
                mean.assign(0.9 * mean + 0.1 * v)

    b.run(loop, data)
    return model.get_weights(), average


@program
def target_network(b: Bench) -> Any:
    online, target, data = b.net(4, 1), b.net(4, 1, seed=3), iter(b.data())
    optimizer, queue = b.keras.optimizers.RMSprop(0.01), b.queue()

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            wanted = y + 0.9 * tf.stop_gradient(target(x))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(wanted - online(x)))
            variables = online.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            for v, t in zip(online.trainable_variables, target.trainable_variables):
                t.assign(0.95 * t + 0.05 * v)
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), online.get_weights(), target.get_weights()


@program
def clipped_by_global_norm(b: Bench) -> Any:
    model, data = b.net(4, 1), iter(b.data())
    optimizer, queue = b.keras.optimizers.Adam(0.05), b.queue()

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, model(x)) * 10.0
            found = tape.gradient(loss, model.trainable_variables)
            found, norm = tf.clip_by_global_norm(found, 0.5)
            optimizer.apply_gradients(zip(found, model.trainable_variables))
            queue.enqueue({"loss": loss, "norm": norm})

    b.run(loop, data)
    return queue.dequeue(), model.get_weights()


@program
def clipped_one_by_one(b: Bench) -> Any:
    model, data = b.net(4, 1), iter(b.data())
    optimizer = b.keras.optimizers.SGD(0.5)

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, model(x))
            found = tape.gradient(loss, model.trainable_variables)
            found = [tf.clip_by_value(tf.clip_by_norm(g, 0.3), -0.1, 0.1) for g in found]
            optimizer.apply_gradients(zip(found, model.trainable_variables))

    b.run(loop, data)
    return model.get_weights()


@program
def weight_decay_in_the_loss(b: Bench) -> Any:
    model, data = b.net(4, 1), iter(b.data())

    def loss(y, found):
        decay = tf.add_n(
            [tf.nn.l2_loss(v) for v in model.trainable_variables if "bias" not in v.name]
        )
        return mse(y, found) + 0.1 * decay

    train = step(model, b.keras.optimizers.SGD(0.1), loss)

    def loop(data):
        for _ in tf.range(4):
            train(*next(data))

    b.run(loop, data)
    return model.get_weights()


@program
def descent_by_hand(b: Bench) -> Any:
    w, bias, data = b.weights((3, 1)), tf.Variable([0.0]), iter(b.data())

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, x @ w + bias)
            dw, db = tape.gradient(loss, [w, bias])
            w.assign_sub(0.1 * dw)
            bias.assign_sub(0.1 * db)

    b.run(loop, data)
    return w, bias


@program
def adam_by_hand(b: Bench) -> Any:
    w, m, v = b.weights((3, 1)), tf.Variable(tf.zeros((3, 1))), tf.Variable(tf.zeros((3, 1)))
    t, data = tf.Variable(0, dtype=tf.int64), iter(b.data())

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, x @ w)
            g = tape.gradient(loss, w)
            t.assign_add(1)
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g * g)
            count = tf.cast(t, tf.float32)
            rate = 0.01 * tf.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            w.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))

    b.run(loop, data)
    return w, m, v, t


@program
def persistent_tape(b: Bench) -> Any:
    one, other, data = b.weights((3, 1)), b.weights((3, 1), 1), iter(b.data())

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            with tf.GradientTape(persistent=True) as tape:
                middle = x @ one
                first, second = mse(y, middle), mse(y, middle + x @ other)
            one.assign_sub(0.1 * tape.gradient(first, one))
            other.assign_sub(0.1 * tape.gradient(second, other))
            del tape

    b.run(loop, data)
    return one, other


@program
def second_derivative(b: Bench) -> Any:
    def cube(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = x * x * x
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    return b.run(cube, tf.constant([1.0, -2.0, 3.0]))


@program
def inner_step_of_meta_learning(b: Bench) -> Any:
    w, data = b.weights((3, 1)), iter(b.data())

    def loop(data):
        for _ in tf.range(2):
            x, y = next(data)
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    loss = mse(y[:2], x[:2] @ w)
                fast = w - 0.1 * inner.gradient(loss, w)
                late = mse(y[2:], x[2:] @ fast)
            w.assign_sub(0.1 * outer.gradient(late, w))

    b.run(loop, data)
    return w


@program
def learning_rate_schedule(b: Bench) -> Any:
    rate = b.keras.optimizers.schedules.ExponentialDecay(0.2, decay_steps=2, decay_rate=0.5)
    model, data = b.net(1), iter(b.data())
    train = step(model, b.keras.optimizers.SGD(rate))

    def loop(data):
        for _ in tf.range(4):
            train(*next(data))

    b.run(loop, data)
    return model.get_weights()


@program
def learning_rate_by_the_counter(b: Bench) -> Any:
    w, data = b.weights((3, 1)), iter(b.data())

    def loop(data):
        for i in tf.range(4):
            x, y = next(data)
            rate = 0.1 * tf.minimum(1.0, tf.cast(i + 1, tf.float32) / 3.0)
            with tf.GradientTape() as tape:
                loss = mse(y, x @ w)
            w.assign_sub(rate * tape.gradient(loss, w))

    b.run(loop, data)
    return w


@program
def learning_rate_changed_between_runs(b: Bench) -> Any:
    model, data = b.net(1), iter(b.data(8))
    optimizer = b.keras.optimizers.SGD(0.1)
    train = step(model, optimizer)

    @tf.function
    def loop(data):
        for _ in tf.range(2):
            train(*next(data))

    for rate in (0.1, 0.3, 0.01):
        optimizer.learning_rate.assign(rate)
        b.run(loop, data)
    return model.get_weights()


@program
def learning_rate_assigned_in_the_loop(b: Bench) -> Any:
    model, data = b.net(1), iter(b.data())
    optimizer = b.keras.optimizers.SGD(0.2)
    train = step(model, optimizer)

    def loop(data):
        for _ in tf.range(4):
            optimizer.learning_rate.assign(optimizer.learning_rate * 0.5)
            train(*next(data))

    b.run(loop, data)
    return model.get_weights()


@program
def metrics_in_the_loop(b: Bench) -> Any:
    model, data = b.net(1), iter(b.data())
    train, mean = step(model, b.keras.optimizers.SGD(0.1)), b.keras.metrics.Mean()
    error = b.keras.metrics.MeanAbsoluteError()

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            mean.update_state(train(x, y))
            error.update_state(y, model(x))

    b.run(loop, data)
    return mean.result(), error.result()


@program
def accuracy_by_hand(b: Bench) -> Any:
    model, data, queue = b.net(3), iter(b.data()), b.queue()

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            labels = tf.cast(y[:, 0] > 0, tf.int64) + 1
            right = tf.equal(tf.argmax(model(x), axis=1), labels)
            queue.enqueue(tf.reduce_mean(tf.cast(right, tf.float32)))

    b.run(loop, data)
    return queue.dequeue()


@program
def sparse_labels(b: Bench) -> Any:
    model, data = b.net(4, 3), iter(b.data())
    entropy = b.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train = step(model, b.keras.optimizers.AdamW(0.01), entropy)

    def loop(data):
        for _ in tf.range(4):
            x, y = next(data)
            train(x, tf.cast(y[:, 0] > 0, tf.int32))

    b.run(loop, data)
    return model.get_weights()


@program
def label_smoothing_by_hand(b: Bench) -> Any:
    logits = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], np.float32)

    def loss(logits, labels):
        wanted = tf.one_hot(labels, 3) * 0.9 + 0.1 / 3
        return tf.nn.softmax_cross_entropy_with_logits(labels=wanted, logits=logits)

    return b.run(loss, logits, np.array([1, 2]))


@program
def optimizer_of_many(b: Bench) -> Any:
    found = []
    for name in ("Adagrad", "Adamax", "Nadam"):
        model, data = b.net(1), iter(b.data(3))
        train = step(model, getattr(b.keras.optimizers, name)(0.05))

        def loop(data):
            for _ in tf.range(3):
                train(*next(data))

        b.run(loop, data)
        found.append(model.get_weights())
    return found


@program
def frozen_layer(b: Bench) -> Any:
    model, data = b.net(4, 1), iter(b.data())
    model.layers[0].trainable = False
    train = step(model, b.keras.optimizers.SGD(0.1))

    def loop(data):
        for _ in tf.range(3):
            train(*next(data))

    b.run(loop, data)
    return model.get_weights()


@program
def batch_normalization(b: Bench) -> Any:
    layers, data = b.keras.layers, iter(b.data())
    model = b.keras.Sequential(
        [
            b.keras.Input((3,)),
            layers.BatchNormalization(momentum=0.5),
            layers.Dense(1, "tanh", kernel_initializer="ones"),
        ]
    )
    train = step(model, b.keras.optimizers.SGD(0.1))

    def loop(data):
        for _ in tf.range(4):
            train(*next(data))

    b.run(loop, data)
    return model.get_weights()
