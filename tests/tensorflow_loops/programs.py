"""Small programs in the manner of public ones: training loops, states, data, and conditions."""

# Programs are written as their users write them.
# ruff: noqa: B023, B905

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
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
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    return train


# Training loops.


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


# States and values from iteration to iteration.


@program
def total_of_losses(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        total = 0.0
        for _ in tf.range(4):
            x, y = next(data)
            total += tf.reduce_sum(x)
        return total / 4.0

    return b.run(loop, data)


@program
def fibonacci(b: Bench) -> Any:
    queue = b.queue()

    def loop():
        one, other = tf.constant(0), tf.constant(1)
        for _ in tf.range(10):
            one, other = other, one + other
            queue.enqueue(one)
        return one

    return b.run(loop), queue.dequeue()


@program
def smallest_so_far(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        best = tf.constant(np.inf)
        for _ in tf.range(4):
            x, _ = next(data)
            best = tf.minimum(best, tf.reduce_min(x))
        return best

    return b.run(loop, data)


@program
def large_count(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        count = tf.constant(2**24 - 1)
        for _ in tf.range(4):
            x, _ = next(data)
            count += tf.shape(x)[0] * 0 + tf.cast(tf.reduce_sum(x) > -100.0, tf.int32)
        return count

    return b.run(loop, data)


@program
def counter_in_a_variable(b: Bench) -> Any:
    count, large, flag = tf.Variable(0), tf.Variable(2**24, dtype=tf.int64), tf.Variable(False)
    queue = b.queue()

    def loop():
        for _ in tf.range(4):
            count.assign_add(3)
            large.assign_add(1)
            flag.assign(tf.logical_not(flag))
            queue.enqueue((count + 1, large, flag))

    b.run(loop)
    b.run(loop)
    return count, large, flag, queue.dequeue()


@program
def variable_read_before_and_after(b: Bench) -> Any:
    v, queue = tf.Variable(1.0), b.queue()

    def loop():
        for _ in tf.range(3):
            before = v.read_value()
            v.assign_add(2.0)
            queue.enqueue((before, v.read_value(), v * 1.0))

    b.run(loop)
    return queue.dequeue(), v


@program
def variable_made_at_first_call(b: Bench) -> Any:
    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.factor = None

        def __call__(self, x):
            if self.factor is None:
                self.factor = tf.Variable(tf.ones(x.shape[-1]) * 3.0)
            self.factor.assign_add(tf.ones_like(self.factor))
            return x * self.factor

    scale = Scale()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    call = tf.function(lambda x: scale(x))
    return b.run(call, tf.constant(x)), b.run(call, tf.constant(x)), scale.factor


@program
def state_of_a_layer(b: Bench) -> Any:
    class Running(b.keras.layers.Layer):
        def build(self, shape):
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

        def call(self, x):
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
            return x - self.mean

    layer, data, queue = Running(), iter(b.data()), b.queue()

    def loop(data):
        for _ in tf.range(3):
            queue.enqueue(tf.reduce_sum(layer(next(data)[0]), 0))

    b.run(loop, data)
    return queue.dequeue(), layer.mean


@program
def counter_of_a_layer(b: Bench) -> Any:
    class Counted(b.keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False
            )

        def call(self, x):
            self.count.assign_add(1)
            return x * tf.cast(tf.convert_to_tensor(self.count), tf.float32)

    layer, data, queue = Counted(), iter(b.data()), b.queue()

    def loop(data):
        for _ in tf.range(3):
            queue.enqueue(tf.reduce_sum(layer(next(data)[0]), 0))

    b.run(loop, data)
    return queue.dequeue(), layer.count


@program
def state_of_an_object(b: Bench) -> Any:
    class Agent:
        def __init__(self):
            self.weights = b.weights((3, 1))
            self.steps = tf.Variable(0.0)

        @tf.function
        def train(self, x, y):
            with tf.GradientTape() as tape:
                loss = mse(y, x @ self.weights)
            self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
            self.steps.assign_add(1.0)
            return loss

    agent, losses = Agent(), []
    for x, y in b.batches():
        losses.append(b.run(agent.train, x, y))
    return losses, agent.weights, agent.steps


@refused("A value of one iteration is used in another iteration|of another function|list")
def rows_in_a_list(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        rows = []
        for _ in range(4):
            rows.append(tf.reduce_sum(next(data)[0]))
        return tf.stack(rows)

    return b.run(loop, data)


@refused("TensorListSetItem with index")
def rows_in_a_tensor_array(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        rows = tf.TensorArray(tf.float32, 4)
        for i in tf.range(4):
            rows = rows.write(i, tf.reduce_sum(next(data)[0]))
        return rows.stack()

    return b.run(loop, data)


@program
def tensor_array_over_rows(b: Bench) -> Any:
    def total(x):
        rows = tf.TensorArray(tf.float32, size=x.shape[0])
        state = tf.zeros(x.shape[1])
        for i in range(x.shape[0]):
            state = 0.5 * state + x[i]
            rows = rows.write(i, state)
        return rows.stack(), state

    return b.run(total, tf.constant(b.arrays()[0]))


@program
def previous_batch(b: Bench) -> Any:
    data, queue = iter(b.data()), b.queue()

    def loop(data):
        last = tf.zeros((4, 3))
        for _ in tf.range(4):
            x, _ = next(data)
            queue.enqueue(tf.reduce_sum(x - last))
            last = x

    b.run(loop, data)
    return queue.dequeue()


# Loops.


@program
def enumerated_data(b: Bench) -> Any:
    data, queue = b.data(), b.queue()

    def loop():
        for i, (x, y) in enumerate(data):
            queue.enqueue(tf.reduce_sum(x) * tf.cast(i, tf.float32) + tf.reduce_sum(y))

    b.run(loop)
    return queue.dequeue()


@program
def enumerated_by_the_data(b: Bench) -> Any:
    data, queue = b.data().enumerate(), b.queue()

    def loop():
        for i, (x, y) in data:
            queue.enqueue((i + 1, tf.reduce_sum(x * y) * tf.cast(i, tf.float32)))

    b.run(loop)
    return queue.dequeue()


@program
def zipped_data(b: Bench) -> Any:
    one, other, queue = b.data(), b.data(3, seed=1), b.queue()

    def loop():
        for (x, _), (y, _) in zip(one, other):
            queue.enqueue(tf.reduce_sum(x * y))

    b.run(loop)
    return queue.dequeue()


@program
def enumerated_zip(b: Bench) -> Any:
    one, other, queue = b.data(), b.data(seed=1), b.queue()

    def loop():
        for i, ((x, _), (y, _)) in enumerate(zip(one, other)):
            queue.enqueue(tf.reduce_sum(x - y) + float(0) + tf.cast(i, tf.float32))

    b.run(loop)
    return queue.dequeue()


@program
def loop_over_the_iterator(b: Bench) -> Any:
    data, queue = iter(b.data()), b.queue()

    def loop(data):
        for x, y in data:
            queue.enqueue(tf.reduce_mean(x) + tf.reduce_mean(y))

    b.run(loop, data)
    return queue.dequeue()


@program
def loop_over_rows(b: Bench) -> Any:
    def total(x):
        found = tf.zeros(3)
        for row in x:
            found = found * 0.5 + row
        return found

    return b.run(total, tf.constant(b.arrays(1)[0]))


@program
def nested_loops(b: Bench) -> Any:
    data, queue = iter(b.data(6)), b.queue()

    def loop(data):
        for i in tf.range(3):
            for j in tf.range(2):
                x, _ = next(data)
                queue.enqueue(tf.reduce_sum(x) + tf.cast(10 * i + j, tf.float32))

    b.run(loop, data)
    return queue.dequeue()


@program
def range_with_a_step(b: Bench) -> Any:
    queue = b.queue()

    def loop():
        for i in tf.range(10, 1, -3):
            queue.enqueue(i * i)

    b.run(loop)
    return queue.dequeue()


@program
def range_of_floats(b: Bench) -> Any:
    queue = b.queue()

    def loop():
        for i in tf.range(0.0, 1.0, 0.25):
            queue.enqueue(i * 2.0)

    b.run(loop)
    return queue.dequeue()


@program
def recurrent_network_by_hand(b: Bench) -> Any:
    cell, state, data = b.weights((3, 3)), b.weights((3, 3), 1), iter(b.data())

    def loop(data):
        for _ in tf.range(2):
            x, _ = next(data)
            with tf.GradientTape() as tape:
                h = tf.zeros((1, 3))
                for t in range(4):
                    h = tf.tanh(x[t : t + 1] @ cell + h @ state)
                loss = tf.reduce_sum(h)
            for v, g in zip((cell, state), tape.gradient(loss, (cell, state))):
                v.assign_sub(0.1 * g)

    b.run(loop, data)
    return cell, state


@refused("break")
def early_exit(b: Bench) -> Any:
    data, queue = iter(b.data()), b.queue()

    def loop(data):
        for i in range(4):
            queue.enqueue(tf.reduce_sum(next(data)[0]))
            if i == 1:
                break

    b.run(loop, data)
    return queue.dequeue()


@refused("[Ss]ymbolic|bool")
def early_exit_by_the_loss(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        for _ in tf.range(4):
            loss = tf.reduce_sum(next(data)[0])
            if loss < 0.0:
                break
        return loss

    return b.run(loop, data)


@refused("[Ss]ymbolic|bool|some iterations")
def skipped_iteration(b: Bench) -> Any:
    data, queue = iter(b.data()), b.queue()

    def loop(data):
        for i in tf.range(4):
            x, _ = next(data)
            if i == 2:
                continue
            queue.enqueue(tf.reduce_sum(x))

    b.run(loop, data)
    return queue.dequeue()


@refused("[Ss]ymbolic|bool|while")
def while_over_a_tensor(b: Bench) -> Any:
    def halve(x):
        while tf.reduce_sum(x) > 1.0:
            x = x / 2.0
        return x

    return b.run(halve, tf.constant([3.0, 5.0]))


@program
def while_over_a_python_number(b: Bench) -> Any:
    def power(x, n):
        result = tf.ones_like(x)
        while n > 0:
            result, n = result * x, n - 1
        return result

    return b.run(power, tf.constant([3.0, 5.0]), 3)


@program
def while_loop_of_tensorflow(b: Bench) -> Any:
    def power(x):
        return tf.while_loop(lambda i, y: i < 5, lambda i, y: [i + 1, y * x], [0, tf.ones_like(x)])

    return b.run(power, tf.constant([2.0, 3.0]))


@refused("condition is computed on the IPU")
def while_loop_on_the_device(b: Bench) -> Any:
    def halve(x):
        return tf.while_loop(lambda y: tf.reduce_sum(y) > 1.0, lambda y: [y / 2.0], [x])

    return b.run(halve, tf.constant([3.0, 5.0]))


@program
def scan_and_map(b: Bench) -> Any:
    def found(x):
        sums = tf.scan(lambda total, row: total * 0.5 + row, x)
        squares = tf.map_fn(lambda row: tf.reduce_sum(row * row), x)
        return sums, squares, tf.foldl(lambda one, other: one - other, x)

    return b.run(found, tf.constant(b.arrays(1)[0]))


@refused("vectorized_map")
def map_of_all_rows(b: Bench) -> Any:
    return b.run(lambda x: tf.vectorized_map(lambda y: y * 2.0, x), tf.constant([1.0, 2.0]))


@program
def rotated_variables(b: Bench) -> Any:
    queue = b.queue()

    def loop():
        one, other, third, fourth = tf.constant(0), tf.constant(0), tf.constant(0), tf.constant(1)
        for _ in tf.range(6):
            one, other, third, fourth = other, third, fourth, one
            queue.enqueue(one + 10)
        return one, fourth

    return b.run(loop), queue.dequeue()


@program
def number_of_python_in_a_loop(b: Bench) -> Any:
    def loop(x):
        scale, count = 1.0, 0
        for _ in tf.range(5):
            scale *= 0.5
            count += 1
            x = x + scale
        return x, scale, count

    return b.run(loop, tf.constant([1.0, 2.0]))


@program
def value_set_anew_in_each_iteration(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        x, y = tf.zeros((4, 3)), tf.zeros((4, 1))
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            x, y = next(data)
            loss = tf.reduce_sum(x) + tf.reduce_sum(y)
        return loss, x

    return b.run(loop, data)


# Conditions and masks.


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


# Arguments and results.


@program
def several_results(b: Bench) -> Any:
    Pair = collections.namedtuple("Pair", "sum product")

    def many(x, other):
        return {"b": x, "a": (x + 1.0, [other["y"]])}, Pair(x + other["y"], x * other["y"]), 7

    found = b.run(many, tf.constant(3.0), {"y": tf.constant(2.0)})
    return found[0]["b"], found[0]["a"], found[1].sum, found[1].product, found[2]


@program
def result_of_none(b: Bench) -> Any:
    def nothing(x):
        return x, None, {"n": None}

    found = b.run(nothing, tf.constant(3.0))
    return found[0], found[1] is None, found[2]["n"] is None


@program
def types_of_results(b: Bench) -> Any:
    def types(x):
        whole = tf.cast(x, tf.int64)
        return (
            whole + 1,
            tf.cast(x, tf.int32) // 2,
            x > 1.0,
            tf.cast(x, tf.float16) * 2,
            tf.cast(x, tf.uint8),
            tf.argmax(x),
            tf.shape(x),
            tf.size(x),
            tf.rank(x),
            tf.cast(x, tf.int8),
            tf.constant(5),
            tf.constant([1.5]),
        )

    return b.run(types, tf.constant([1.0, 2.5, 0.0]))


@program
def integers_of_64_bits(b: Bench) -> Any:
    def numbers(x, y):
        return (
            x * 2 + 1,
            x * x,
            tf.cumsum(x),
            x - y,
            tf.reduce_sum(x * y),
            tf.reduce_prod(x),
            x // 3,
            x % 5,
            (x * 2**20 + y * 7919) % 10007,
        )

    return b.run(numbers, np.array([5, -7, 11]), np.array([2, 1, 4096]))


@program
def shapes(b: Bench) -> Any:
    def shaped(x):
        rows, width = tf.shape(x)[0], x.shape[-1]
        flat = tf.reshape(x, [rows * 3])
        return (
            flat,
            tf.reshape(x, (-1, width)),
            tf.zeros_like(x),
            tf.fill([rows], 2.0),
            tf.range(rows),
            tf.ones(tf.shape(x)[1:]),
            len(x.shape),
            x.get_shape().as_list(),
        )

    return b.run(shaped, tf.constant(b.arrays(1)[0]))


@program
def function_in_a_function(b: Bench) -> Any:
    w = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32)])
    def inner(x):
        w.assign_add(1.0)
        return x * w

    @tf.function(reduce_retracing=True)
    def outer(x, n):
        for _ in range(n):
            x = inner(x) + 1.0
        return x

    return b.run(outer, tf.constant([1.0, 2.0]), 2), w


@program
def method_of_a_module(b: Bench) -> Any:
    class Linear(tf.Module):
        def __init__(self):
            super().__init__(name="linear")
            self.w = b.weights((3, 2))
            self.b = tf.Variable(tf.zeros(2), name="b")

        @tf.function(jit_compile=True)
        def __call__(self, x):
            return tf.nn.relu(x @ self.w + self.b)

    linear = Linear()
    return b.run(linear.__call__, tf.constant(b.arrays(1)[0])), len(linear.trainable_variables)


@program
def rows_to_a_queue(b: Bench) -> Any:
    data, queue, second = iter(b.data()), b.queue(), b.queue()

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            queue.enqueue({"x": x[0], "y": (y[1], tf.constant(1))})
            second.enqueue(x[1:3])

    b.run(loop, data)
    found = queue.dequeue()
    return found["x"], found["y"], second.dequeue()


@program
def lists_and_dictionaries_in_functions(b: Bench) -> Any:
    def layers(x):
        found = {}
        for name in ("one", "two"):
            found[name] = x = x * 2.0
        return tf.concat([found["two"], found["one"]], 0), sum(found.values())

    return b.run(layers, tf.constant([1.0, 2.0]))


@program
def control_dependencies(b: Bench) -> Any:
    v = tf.Variable(1.0)

    def change(x):
        with tf.control_dependencies([v.assign(5.0)]), tf.name_scope("scope"):
            y = tf.identity(v + x)
        tf.group(v.assign_add(1.0))
        return y

    return b.run(change, tf.constant(2.0)), v


@program
def checks_of_shapes(b: Bench) -> Any:
    def checked(x):
        tf.debugging.assert_equal(x.shape[0], 4)
        tf.debugging.assert_rank(x, 2)
        tf.debugging.assert_shapes([(x, ("n", 3))])
        tf.debugging.assert_type(x, tf.float32)
        tf.assert_equal(tf.shape(x)[1], 3)
        return tf.ensure_shape(x, (4, None)) + 1.0

    return b.run(checked, tf.constant(b.arrays(1)[0]))


@refused("Assert")
def check_of_values(b: Bench) -> Any:
    def checked(x):
        tf.debugging.assert_greater(x, -1.0)
        return x

    return b.run(checked, tf.constant([1.0, 2.0]))


@refused("CheckNumerics")
def check_of_numbers(b: Bench) -> Any:
    return b.run(lambda x: tf.debugging.check_numerics(x, "x"), tf.constant([1.0, 2.0]))


@refused("tf.print shows values of the host")
def print_of_a_value(b: Bench) -> Any:
    def shown(x):
        tf.print("x is", x)
        return x

    return b.run(shown, tf.constant([1.0, 2.0]))


@refused("tf.print shows values of the host")
def print_of_a_text(b: Bench) -> Any:
    def shown(x):
        tf.print("shape", x.shape)
        print("tracing", x.dtype)
        return x + 1.0

    return b.run(shown, tf.constant([1.0, 2.0]))


@refused("run on the host")
def function_of_numpy(b: Bench) -> Any:
    return b.run(
        lambda x: tf.numpy_function(lambda y: y * 2, [x], tf.float32), tf.constant([1.0, 2.0])
    )


@refused("custom_gradient")
def gradient_of_its_own(b: Bench) -> Any:
    @tf.custom_gradient
    def reverse(x):
        return tf.identity(x), lambda dy: -dy

    def loss(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(reverse(x) * 2.0)
        return tape.gradient(y, x)

    return b.run(loss, tf.constant([1.0, 2.0]))


@refused("jacobian")
def jacobian(b: Bench) -> Any:
    def rows(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.jacobian(y, x)

    return b.run(rows, tf.constant([1.0, 2.0]))


@program
def gradient_of_several_targets(b: Bench) -> Any:
    def loss(x):
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(x)
            y, z = x * x, tf.sin(x)
        return (
            tape.gradient([y, z], x),
            tape.gradient(y, x, output_gradients=tf.constant([1.0, 3.0])),
            tape.gradient(z, {"x": x}),
        )

    return b.run(loss, tf.constant([1.0, 2.0]))


@program
def gradient_that_is_not_there(b: Bench) -> Any:
    def loss(x, y):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([x, y])
            z = x * 2.0
        zero = tape.gradient(z, y, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tape.gradient(z, y) is None, zero, tape.gradient(tf.stop_gradient(z), x) is None

    return b.run(loss, tf.constant([1.0]), tf.constant([2.0]))


@program
def gradient_outside_of_the_tape(b: Bench) -> Any:
    def loss(x):
        before = x * 2.0
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * 3.0
        after = y * 4.0
        with tf.GradientTape(persistent=True) as second:
            second.watch(before)
            z = before * x
        return (
            tape.gradient(y, x),
            tape.gradient(after, x) is None,
            second.gradient(z, before),
            second.gradient(z, x) is None,
        )

    return b.run(loss, tf.constant([1.0, 2.0]))


@program
def target_before_the_tape(b: Bench) -> Any:
    model, data = b.net(4, 1), iter(b.data())
    optimizer, queue = b.keras.optimizers.SGD(0.1), b.queue()

    def loop(data):
        for _ in tf.range(3):
            x, y = next(data)
            wanted = y + 0.9 * model(x)
            with tf.GradientTape() as tape:
                loss = mse(wanted, model(x))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue(loss)

    b.run(loop, data)
    return queue.dequeue(), model.get_weights()


@program
def target_before_the_tape_by_variables(b: Bench) -> Any:
    w = b.weights((3, 1))

    def loss(x):
        wanted = x @ w
        with tf.GradientTape() as tape:
            found = tf.reduce_sum(tf.square(x @ w - 0.5 * wanted))
        return tape.gradient(found, w)

    return b.run(loss, tf.constant(b.arrays(1)[0]))


@refused("operations that another tape has recorded, but this one has not")
def gradient_of_an_inner_tape_around_the_outer_one(b: Bench) -> Any:
    def loss(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            before = x * x
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = before * x
            slope = inner.gradient(y, x)
        return outer.gradient(slope, x)

    return b.run(loss, tf.constant([1.0, 2.0]))


@program
def gradient_of_a_variable_assigned_meanwhile(b: Bench) -> Any:
    v = tf.Variable(2.0)

    def loss(x):
        with tf.GradientTape(persistent=True) as tape:
            y = x * v * v
            v.assign_add(1.0)
            z = x * v
        return tape.gradient(y, v), tape.gradient(z, v), tape.gradient([y, z], x)

    return b.run(loss, tf.constant(1.5)), v


@refused("can only be used to compute one set of gradients")
def tape_used_twice(b: Bench) -> Any:
    def loss(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x), tape.gradient(y, x)

    return b.run(loss, tf.constant([1.0, 2.0]))


@program
def gradient_with_a_stopped_tape(b: Bench) -> Any:
    def loss(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * 3.0
            with tape.stop_recording():
                z = y * y
            total = y + z
        return tape.gradient(total, x)

    return b.run(loss, tf.constant([1.0, 2.0]))


@program
def gradient_of_an_unwatched_variable(b: Bench) -> Any:
    v, fixed = tf.Variable(2.0), tf.Variable(3.0, trainable=False)

    def loss(x):
        with tf.GradientTape(persistent=True) as tape:
            y = x * v * fixed
        with tf.GradientTape(watch_accessed_variables=False) as second:
            z = x * v
        return (
            tape.gradient(y, v),
            tape.gradient(y, fixed) is None,
            second.gradient(z, v) is None,
            tape.gradient(y, x) is None,
        )

    return b.run(loss, tf.constant(1.5))


# Data sets.


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


# Random numbers: their sizes, and whether they change.


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


# Fields of use.


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


@program
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
