"""How loops read: several elements at a time, and the next ones while an iteration runs."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.loops.dataset_functions import calls_python  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

SIGNATURE = tf.TensorSpec((), tf.int64)
NUMBERS = tf.data.Dataset.range(9)
OF_PYTHON = {
    "function": NUMBERS.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)),
    "generator": tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=SIGNATURE),
    "below": NUMBERS.map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)).batch(3).repeat(),
    "in a branch": NUMBERS.map(
        lambda x: tf.cond(x > 3, lambda: tf.py_function(lambda y: y, [x], tf.int64), lambda: x)
    ),
    "zipped": tf.data.Dataset.zip(
        (NUMBERS, NUMBERS.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)))
    ),
}
OF_TENSORFLOW = {
    "range": NUMBERS,
    "map": NUMBERS.map(lambda x: tf.cast(x, tf.float32) * 2).shuffle(4).batch(2).prefetch(2),
    "slices": tf.data.Dataset.from_tensor_slices((np.ones((6, 2)), np.ones(6))).repeat(),
    "interleaved": NUMBERS.interleave(lambda x: tf.data.Dataset.range(x)),
}


@pytest.mark.parametrize("name", [*OF_PYTHON, *OF_TENSORFLOW])
def test_data_set_then_calls_python_or_does_not(name: str) -> None:
    assert calls_python({**OF_PYTHON, **OF_TENSORFLOW}[name]) == (name in OF_PYTHON)


@pytest.mark.parametrize("replicas", [1, 2])
def test_long_loop_when_cut_into_pieces_then_trains_as_an_eager_one(replicas: int) -> None:
    count = 120
    strategy = programs.strategy(replicas)
    with strategy.scope():
        model = models.mlp()
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        queue, iterator = ipu.ipu_outfeed_queue.IPUOutfeedQueue(), iter(programs.dataset())
        train = programs.step(model, optimizer)

        def loop():
            for _ in range(count):
                queue.enqueue(train(*next(iterator)))

        strategy.run(loop)
    eager = models.mlp()
    batches = programs.batches_of(count * replicas)
    together = [batches[n * replicas : (n + 1) * replicas] for n in range(count)]
    wanted = programs.eager_losses(eager, keras.optimizers.SGD(0.01, momentum=0.9), together)
    np.testing.assert_allclose(queue.dequeue().numpy().reshape(-1), wanted, atol=1e-4)
    assert models.largest_difference(eager, model) < 1e-5


def test_elements_of_several_kinds_then_arrive_whole_and_in_order() -> None:
    count = 130  # No multiple of what is read at once.
    strategy = programs.strategy()
    rows = np.arange(3 * count, dtype=np.float64).reshape(count, 3)
    flags = np.arange(count) % 3 == 0
    with strategy.scope():
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        data = tf.data.Dataset.from_tensor_slices({"rows": rows, "flag": flags})
        iterator = iter(data)

        def loop():
            for _ in range(count):
                queue.enqueue(next(iterator))

        strategy.run(loop)
    found = queue.dequeue()
    np.testing.assert_array_equal(found["rows"].numpy(), rows.astype(np.float32))
    np.testing.assert_array_equal(found["flag"].numpy(), flags)
