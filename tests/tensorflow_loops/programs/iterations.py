"""Loops of many forms: nested, with early ends, over ranges and lists."""

# Programs are written as their users write them.
# ruff: noqa: B905

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import program, refused


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
def number_of_an_element(b: Bench) -> Any:
    queue = b.queue()

    def loop(data):
        for i, (x, _) in enumerate(data):
            queue.enqueue((i, tf.cast(i, tf.float32) + float(len(x))))

    b.run(tf.function(loop), b.data(3))
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


@refused("tensor as a condition of Python")
def early_exit_by_the_loss(b: Bench) -> Any:
    data = iter(b.data())

    def loop(data):
        for _ in tf.range(4):
            loss = tf.reduce_sum(next(data)[0])
            if loss < 0.0:
                break
        return loss

    return b.run(loop, data)


@refused("tensor as a condition of Python|some iterations")
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


@refused("tensor as a condition of Python")
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
