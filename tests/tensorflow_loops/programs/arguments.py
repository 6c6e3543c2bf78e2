"""Arguments and results of functions."""

# Programs are written as their users write them.
# ruff: noqa: B905

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_loops.bench import Bench
from tensorflow_loops.table import mse, program, refused


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
