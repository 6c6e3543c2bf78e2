"""States, and values that go from one iteration to the next."""

# Programs are written as their users write them.

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program, refused


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


@program
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
