"""Objects of Python that a program changes while it is traced."""

# Programs are written as their users write them.
# ruff: noqa: B905

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program, refused

COUNTS = {"calls": 0}


@program
def counter_in_a_function_without_a_loop(b: Bench) -> Any:
    calls = [0]

    @tf.function
    def double(x):
        calls[0] += 1
        return x * 2.0

    b.run(double, tf.constant(1.0))
    return b.run(double, tf.constant(2.0)), calls


@program
def counters_in_a_loop_of_a_data_set(b: Bench) -> Any:
    before, inside, after, queue = [0], [], [0], b.queue()

    def loop(data):
        before[0] += 1
        for x, _ in data:
            inside.append("once")
            queue.enqueue(tf.reduce_sum(x) * float(len(inside)))
        after[0] += 1

    b.run(tf.function(loop), b.data(3))
    return before, len(inside), after, queue.dequeue()


@program
def counter_in_an_attribute_that_the_loop_assigns(b: Bench) -> Any:
    class Counted:
        number = 1.0

    counted, data = Counted(), iter(b.data())

    def loop(data):
        total = 0.0
        for _ in tf.range(3):
            x, _ = next(data)
            counted.number += 1.0
            total += tf.reduce_sum(x) * counted.number
        return total

    return b.run(loop, data)


@refused("assigns to .*, whose value TensorFlow hands on")
def counter_in_an_element_that_the_loop_assigns(b: Bench) -> Any:
    numbers, queue = [0], b.queue()

    def loop(n):
        for _ in tf.range(n):
            numbers[0] += 1
            queue.enqueue(tf.constant(1.0) * tf.cast(numbers[0], tf.float32))

    b.run(loop, 3)
    return queue.dequeue()


@program
def number_of_calls_as_a_factor(b: Bench) -> Any:
    class Counted:
        calls = 0

        def __init__(self):
            self.number = 1

        def scaled(self, x):
            self.number += 1
            Counted.calls += 10
            COUNTS["calls"] += 100
            return x * float(self.number + Counted.calls + COUNTS["calls"])

    COUNTS["calls"] = 0
    counted, queue = Counted(), b.queue()

    def loop(n):
        for _ in tf.range(n):
            queue.enqueue(counted.scaled(tf.constant(1.0)))

    b.run(loop, 3)
    return queue.dequeue(), counted.number, Counted.calls, COUNTS["calls"]


@program
def random_numbers_of_python(b: Bench) -> Any:
    mine, queue = np.random.default_rng(5), b.queue()
    np.random.seed(3)
    random.seed(4)

    def loop(n):
        for _ in tf.range(n):
            own = mine.normal(size=2).astype(np.float32)
            shared = np.random.normal(size=2).astype(np.float32)
            queue.enqueue(tf.constant(own + shared) * 1.0)

    b.run(loop, 3)
    return queue.dequeue(), mine.normal(), np.random.normal(), random.random()


@program
def history_of_a_training_step(b: Bench) -> Any:
    model, history = b.net(4, 1), []
    optimizer = b.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    data, queue = iter(b.data()), b.queue()

    def train(data, n):
        for _ in tf.range(n):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = mse(y, model(x, training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            queue.enqueue(loss)
            history.append(len(history))

    b.run(train, data, 4)
    return queue.dequeue(), history, model.get_weights()


@program
def state_in_an_attribute(b: Bench) -> Any:
    class Cell:
        def __init__(self):
            self.state = 0.0

    cell = Cell()

    def loop(x):
        for number in range(3):
            cell.state = tf.tanh(x + cell.state) * (number + 1.0)
        return cell.state

    return b.run(loop, tf.constant([0.5, -1.0]))


@program
def layers_made_at_the_first_call(b: Bench) -> Any:
    class Lazy(tf.Module):
        def __init__(self):
            super().__init__()
            self.is_built, self.w = False, None

        def __call__(self, x):
            if not self.is_built:
                self.w = tf.Variable(tf.ones(x.shape[-1]) * 2.0)
                self.is_built = True
            return x * self.w

    lazy = Lazy()

    def loop(x):
        total = tf.zeros_like(x)
        for _ in tf.range(3):
            total += lazy(x)
        return total

    return b.run(tf.function(lambda x: lazy(x)), tf.ones((2, 3))), lazy.is_built, lazy.w


@program
def counter_of_a_method(b: Bench) -> Any:
    class Counted:
        number = 0

        @tf.function
        def scaled(self, x):
            self.number += 1
            return x * float(self.number)

    counted = Counted()
    return b.run(counted.scaled, tf.constant(2.0)), counted.number


@refused("body of a loop over range\\(\\) changes")
def counter_in_a_loop_over_range(b: Bench) -> Any:
    counts, queue = [0], b.queue()

    def loop():
        for i in range(3):
            counts[0] += 1
            queue.enqueue(tf.constant(1.0) * i)

    b.run(loop)
    return counts


@refused("advances the iterator")
def values_of_an_iterator(b: Bench) -> Any:
    values = iter([1.0, 2.0, 3.0])

    def double(x):
        return x * next(values)

    return b.run(double, tf.constant(1.0))
