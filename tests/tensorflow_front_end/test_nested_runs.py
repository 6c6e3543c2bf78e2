"""Functions that run within others, or within the data of others: none of them waits forever."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.tensorflow.loops import turns  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

SIGNATURE = tf.TensorSpec((), tf.float32)


def double(x):
    return x * 2


def by_py_function(make):
    def element(number):
        value = tf.py_function(make, [tf.cast(number, tf.float32)], tf.float32)
        return tf.ensure_shape(value, ())

    return tf.data.Dataset.range(4).map(element)


def by_generator(make):
    return tf.data.Dataset.from_generator(
        lambda: (make(np.float32(number)) for number in range(4)), output_signature=SIGNATURE
    )


@pytest.mark.parametrize("kind", [by_py_function, by_generator], ids=lambda kind: kind.__name__)
def test_data_when_they_run_a_function_then_the_loop_that_reads_them_says_so(
    kind, monkeypatch
) -> None:
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 0.2)
    strategy = programs.strategy()
    data = kind(lambda x: strategy.run(double, args=[x]))
    with strategy.scope():
        queue, iterator = ipu.ipu_outfeed_queue.IPUOutfeedQueue(), iter(data)

        def loop():
            for _ in range(3):
                queue.enqueue(next(iterator))

        with pytest.raises(tf.errors.OpError, match="is called by a function of data .*args="):
            strategy.run(loop)
    # On the host, functions of data may call `run`, and a program can pass each element on.
    found = [float(strategy.run(double, args=[each])) for each in data]
    assert found == [0, 4, 8, 12]


def test_function_when_run_within_another_then_is_refused_and_the_next_run_works() -> None:
    strategy = programs.strategy()
    with pytest.raises(Error, match="within a function that strategy.run runs"):
        strategy.run(lambda x: strategy.run(double, args=[x]), args=[tf.constant(2.0)])
    assert float(strategy.run(double, args=[tf.constant(2.0)])) == 4


def test_function_when_run_while_a_graph_is_built_then_is_refused() -> None:
    """The graph would contain the result of a single run."""
    strategy = programs.strategy()

    @tf.function(autograph=False)
    def outer():
        return strategy.run(double, args=[tf.constant(2.0)])

    with pytest.raises(Error, match=r"take @tf.function off the caller"):
        outer()
    with pytest.raises(Error, match="a function that Dataset.map takes"):
        tf.data.Dataset.range(3).map(lambda x: strategy.run(double, args=[x]))
