"""Functions with special cases, compared with TensorFlow: ties, NaN, empty axes, and borders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.tensorflow.functions.program_functions import on_device  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(3, 4)).astype(np.float32)
TIES = np.array([[3.0, 5.0, 3.0, 5.0], [1.0, 1.0, np.nan, 0.0]], np.float32)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, -2.5, 0.5], np.float32)
LARGE = np.array([1e8, 1.0, 2.0, np.inf], np.float32)
WHOLE = np.array([[7, -7, 3], [-2, 5, 0]], np.int32)
EMPTY = np.zeros((0, 3), np.float32)
IMAGES = GENERATOR.normal(size=(2, 7, 6, 4)).astype(np.float32)
KERNEL = GENERATOR.normal(size=(3, 2, 4, 5)).astype(np.float32)

CALLS = {
    "pad SYMMETRIC": (lambda x: tf.pad(x, [[2, 3], [1, 4]], "SYMMETRIC"), X),
    "cumsum exclusive": (lambda x: tf.cumsum(x, exclusive=True, reverse=True), LARGE),
    "cumprod": (lambda x: tf.math.cumprod(x, axis=1, exclusive=True), X),
    "top_k of ties": (lambda x: tf.math.top_k(x, 3)[1], TIES[:1]),
    "argsort descending": (lambda x: tf.argsort(x, direction="DESCENDING", stable=True), TIES[:1]),
    "sign": (tf.sign, SPECIAL),
    "round": (tf.round, SPECIAL),
    "maximum": (lambda x: tf.maximum(x, 1.0), SPECIAL),
    "minimum": (lambda x: tf.minimum(x, 1.0), SPECIAL),
    "xlogy": (lambda x: tf.math.xlogy(x, x), SPECIAL),
    "argmax of ties": (lambda x: tf.argmax(x, 1), TIES[:1]),
    "norm of order 1": (lambda x: tf.norm(x, ord=1), X),
    "norm of order inf": (lambda x: tf.norm(x, ord=np.inf), X),
    "reversed slice": (lambda x: x[::-1, -1:0:-2], X),
    "slice with a new axis": (lambda x: x[..., tf.newaxis, 1:], X),
    "repeat by a list": (lambda x: tf.repeat(x, [0, 2, 1], axis=0), X),
    "boolean_mask": (lambda x: tf.boolean_mask(x, [True, False, True]), X),
    "gather with batch_dims": (lambda x: tf.gather(x, [[0, 3], [1, 1], [2, 0]], batch_dims=1), X),
    "empty segments": (lambda x: tf.math.unsorted_segment_max(x, [0, 3, -1], 5), X),
    "mean of integers": (lambda x: tf.reduce_mean(x, 1), WHOLE),
    "floordiv of integers": (lambda x: x // 2, WHOLE),
    "mod of integers": (lambda x: x % -3, WHOLE),
    "truncatediv": (lambda x: tf.truncatediv(x, 2), WHOLE),
    "max of nothing": (lambda x: tf.reduce_max(x, 0), EMPTY),
    "sum over no axis": (lambda x: tf.reduce_sum(x, []), X),
    "one_hot out of range": (lambda x: tf.one_hot(x, 4), WHOLE),
    "while_loop": (
        lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1],
        X,
    ),
    "scan": (lambda x: tf.scan(lambda total, row: total + row, x), X),
    "cond": (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x), X),
    "max_pool": (lambda x: tf.nn.max_pool(x, 2, 2, "VALID"), IMAGES),
    "max_pool of four": (lambda x: tf.nn.max_pool(x, [1, 3, 2, 1], [1, 2, 1, 1], "SAME"), IMAGES),
    "avg_pool SAME": (lambda x: tf.nn.avg_pool(x, 3, 2, "SAME"), IMAGES),
    "dilated conv2d": (lambda x: tf.nn.conv2d(x, KERNEL, 1, "SAME", dilations=2), IMAGES),
    "strided conv2d": (lambda x: tf.nn.conv2d(x, KERNEL, [1, 2, 3, 1], "SAME"), IMAGES),
    "conv2d_transpose": (
        lambda x: tf.nn.conv2d_transpose(x, KERNEL.transpose(0, 1, 3, 2), (2, 14, 12, 5), 2),
        IMAGES,
    ),
    "space_to_depth": (lambda x: tf.nn.space_to_depth(x[:, :6], 2), IMAGES),
    "depth_to_space": (lambda x: tf.nn.depth_to_space(x, 2), IMAGES),
    "resize": (lambda x: tf.image.resize(x, (5, 9)), IMAGES),
    "resize by nearest": (lambda x: tf.image.resize(x, (5, 9), "nearest"), IMAGES),
    "det": (lambda x: tf.linalg.det(x[:, :3]), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_function_then_returns_what_tensorflow_does(name: str) -> None:
    call, given = CALLS[name]
    ipu.ipu_strategy.IPUStrategy()
    wanted = call(tf.constant(given)).numpy()
    result = on_device(call)(torch.from_numpy(given)).numpy()
    assert result.dtype == wanted.dtype
    np.testing.assert_allclose(result, wanted, atol=2e-5, rtol=1e-5)


def test_gradients_then_are_tensorflows_at_ties() -> None:
    def value(x):
        return tf.reduce_sum(tf.maximum(x, 1.0) * 2 + tf.minimum(x, 1.0) + tf.nn.relu(x - 1.0))

    ipu.ipu_strategy.IPUStrategy()
    given = np.array([1.0, 0.5, 2.0], np.float32)
    x, constant = torch.from_numpy(given).requires_grad_(), tf.constant(given)
    on_device(value)(x).backward()
    with tf.GradientTape() as tape:
        tape.watch(constant)
        wanted = value(constant)
    np.testing.assert_array_equal(x.grad.numpy(), tape.gradient(wanted, constant).numpy())


QUESTIONS = {
    "isinstance": lambda x: isinstance(x, tf.Tensor),
    "shape": lambda x: x.shape == [3, 4],
    "type": lambda x: x.dtype == "float32",
    "eager": lambda x: not tf.executing_eagerly(),
    "inside": lambda x: tf.inside_function(),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_question_of_a_tensor_then_is_answered_as_by_tensorflow(name: str) -> None:
    function = tf.function(lambda x: x * 2 if QUESTIONS[name](x) else x)
    result = programs.strategy().run(function, args=[tf.constant(X)])
    np.testing.assert_array_equal(result, X * 2)


def test_loops_then_count_with_enumerate_and_zip() -> None:
    strategy = programs.strategy()
    data = tf.data.Dataset.from_tensor_slices(np.arange(4, dtype=np.float32))
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def loop(data):
        for number, (x, other) in enumerate(zip(data, range(10, 2, -2), strict=False), 5):
            queue.enqueue(tf.cast(number, tf.float32) * 100 + x + other)

    strategy.run(loop, args=[data])
    np.testing.assert_array_equal(queue.dequeue(), [510.0, 609.0, 708.0, 807.0])


def test_number_of_python_when_each_iteration_has_another_then_is_refused() -> None:
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    numbers = iter(range(9))

    def loop():
        for _ in tf.range(3):
            number = next(numbers)
            queue.enqueue(tf.constant(1.0) * number)

    with pytest.raises(Error, match="Local variable 'number' is 0 after the first iteration"):
        programs.strategy().run(loop)


def test_weights_when_read_after_their_update_then_are_the_new_ones() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.ones((3, 1), np.float32)])
        optimizer, second = keras.optimizers.SGD(0.1), keras.optimizers.Nadam(0.1)

    def step(x):
        before = tf.identity(model.trainable_variables[0])
        for each in (optimizer, second):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            gradients = tape.gradient(loss, model.trainable_variables)
            each.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return before, loss, model.trainable_variables[0] + 0.0

    before, loss, after = strategy.run(step, args=[np.ones((2, 3), np.float32)])
    np.testing.assert_array_equal(before, np.ones((3, 1)))
    assert float(loss) == pytest.approx(4.8)
    np.testing.assert_allclose(after, model.get_weights()[0])
    assert after.numpy()[0, 0] == pytest.approx(0.7, abs=0.02)
    assert (int(optimizer.iterations), int(second.iterations)) == (1, 1)


# Each goes beyond 32 bits from integers that fit.
LONG = {
    "product": lambda x: x * x,
    "sum": lambda x: tf.reduce_sum(x * tf.constant([1, 2**20], tf.int64)),
    "cumulative sum": lambda x: tf.cumsum(x + (2**31 - 2**20)),
    "difference": lambda x: -(2**31) - x,
    "cast": lambda x: tf.cast(tf.cast(x, tf.float32) * 1e6, tf.int64),
}


@pytest.mark.parametrize("name", LONG)
def test_result_when_longer_than_32_bits_then_is_refused_with_the_number(name: str) -> None:
    given = np.array([3, 2**20])
    wanted = np.ravel(LONG[name](tf.constant(given)))
    wrong = next(x for x in wanted if not -(2**31) <= x < 2**31)
    with pytest.raises(OverflowError, match=f"result of the type int64 is {wrong}"):
        programs.strategy().run(LONG[name], args=[given])


def test_argument_when_longer_than_32_bits_then_is_refused() -> None:
    with pytest.raises(OverflowError, match="have 32 bits, but here is one from 5 to 8589934592"):
        programs.strategy().run(lambda x: x + 1, args=[np.array([2**33, 5])])


def test_integers_when_long_only_inside_then_are_those_of_tensorflow() -> None:
    def checksum(x):
        return (x * 2**20 + x * x * 7919) % 10007, tf.cast(x * x, tf.int32), x // 3

    x, queue = np.array([5, -(2**20), 2**31 - 1]), ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def loop(x):
        total = x
        for _ in tf.range(3):
            total = (total * total + 2**24 + 1) % (2**31 - 1)
            queue.enqueue(total)
        return checksum(total)

    found = programs.strategy().run(loop, args=[x])
    sums = [x]
    for _ in range(3):
        sums.append((sums[-1] * sums[-1] + 2**24 + 1) % (2**31 - 1))
    np.testing.assert_array_equal(queue.dequeue(), sums[1:])
    for one, other in zip(found, checksum(tf.constant(sums[-1])), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
