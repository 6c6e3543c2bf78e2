"""Variables with integers in functions that `IPUStrategy.run` runs."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import Error  # noqa: E402

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


def test_integers_when_the_device_cannot_hold_them_then_the_way_out_is_said() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        counter, large = fixed(0, "int32"), tf.Variable(2**24 - 2)
        with pytest.raises(Error, match="type int32, which is not brought back. Give it the type"):
            strategy.run(lambda: counter.assign_add(1))
        assert counter.numpy() == 0

        def count():
            large.assign_add(1)

        strategy.run(count)
        assert large.numpy() == 2**24 - 1
        for _ in range(2):
            with pytest.raises(Error, match="must be below 16777216 .* as an argument"):
                strategy.run(count)
        assert large.numpy() == 2**24 - 1


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
