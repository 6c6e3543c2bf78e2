"""Variables with integers in functions that `IPUStrategy.run` runs."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")


def fixed(value, dtype: str):
    return keras.Variable(value, dtype=dtype, trainable=False)


def test_integers_when_the_host_changes_them_then_the_next_run_has_the_new_ones() -> None:
    strategy = programs.strategy(2)
    with strategy.scope():
        of_keras, flag = fixed([3, 2**24 + 1], "int32"), fixed(True, "bool")
        of_tensorflow = tf.Variable([5, 6])

        def loop(x):
            total = 0 * x
            for _ in range(3):
                total = total + keras.ops.where(flag, of_keras, x)
            return total, of_tensorflow + x

        x = np.array([10, 20], np.int32)
        for value in (3, 7):
            of_keras.assign([value, 2**24 + value])
            of_tensorflow.assign([value, 9])
            total, added = strategy.run(loop, args=[x])
            np.testing.assert_array_equal(total.numpy(), [3 * value, 3 * (2**24 + value)])
            np.testing.assert_array_equal(added.numpy(), [value + 10, 29])
        flag.assign(False)
        np.testing.assert_array_equal(strategy.run(loop, args=[x])[0].numpy(), 3 * x)


def test_integers_when_the_device_assigns_them_then_are_exact() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        counter, flag = fixed(0, "int32"), fixed(True, "bool")
        large = tf.Variable(np.array([2**24 - 2, -(2**30)]), dtype=tf.int64)

        def count():
            for _ in range(3):
                counter.assign_add(2)
                large.assign_add([1, -(2**24) - 1])
                flag.assign(keras.ops.logical_not(flag))
                seen.enqueue((keras.ops.convert_to_tensor(counter), large))

        seen = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        for _ in range(2):
            strategy.run(count)
    assert (int(counter.value), bool(flag.value)) == (12, True)
    np.testing.assert_array_equal(large, [2**24 + 4, -(2**30) - 6 * 2**24 - 6])
    counts, values = seen.dequeue()
    np.testing.assert_array_equal(counts, range(2, 13, 2))
    np.testing.assert_array_equal(values[-1], large)


def test_integers_when_longer_than_32_bits_then_are_refused() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        large = tf.Variable(2**31 - 2, dtype=tf.int64)

        def count():
            large.assign_add(1)

        strategy.run(count)
        with pytest.raises(OverflowError, match="have 32 bits, but here is one from 2147483648"):
            strategy.run(count)
        assert large.numpy() == 2**31 - 1
        large.assign(2**40)
        with pytest.raises(OverflowError, match="1099511627776"):
            strategy.run(count)


def test_iterations_of_an_optimizer_then_are_those_so_far() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer = models.mlp(), keras.optimizers.SGD(0.1)
        iterator = iter(programs.dataset())
        train = programs.step(model, optimizer)
        assert strategy.run(lambda: optimizer.iterations + 1).numpy() == 1

        def loop():
            for _ in range(3):
                train(*next(iterator))

        def reading_loop():
            for _ in range(3):
                train(*next(iterator))
                count = optimizer.iterations + 0
            return count

        strategy.run(loop)
        assert int(strategy.run(reading_loop)) == 6
        assert int(optimizer.iterations) == 6
