"""Reading by loops: several elements at a time, and ahead while an iteration runs."""

from __future__ import annotations

import time

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.tensorflow.loops import function_program  # noqa: E402
from poptorch_emu.keras.tensorflow.loops.safe_data_sets import can_be_bundled  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

SIGNATURE = tf.TensorSpec((), tf.int64)
NUMBERS = tf.data.Dataset.range(9)
SLICES = tf.data.Dataset.from_tensor_slices((np.ones((6, 2)), np.ones(6)))
VARIABLE = tf.Variable(2, dtype=tf.int64)
MAY_FAIL = {
    "function of Python": NUMBERS.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)),
    "generator": tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=SIGNATURE),
    "below": NUMBERS.map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)).batch(3).repeat(),
    "in a branch": NUMBERS.map(
        lambda x: tf.cond(x > 3, lambda: tf.py_function(lambda y: y, [x], tf.int64), lambda: x)
    ),
    "zipped": tf.data.Dataset.zip((NUMBERS, NUMBERS.map(lambda x: 6 // x))),
    "division": NUMBERS.map(lambda x: 6 // x),
    "index": NUMBERS.map(lambda x: tf.gather([1, 2, 3], x)),
    "shape": NUMBERS.map(lambda x: tf.reshape(tf.zeros([x]), [2])),
    "variable": NUMBERS.map(lambda x: x * VARIABLE),
    "file": tf.data.TextLineDataset(["no such file"]),
    "cached in a file": NUMBERS.cache("no_such_folder/cache"),
    "interleaved": NUMBERS.interleave(lambda x: tf.data.Dataset.range(x)),
}
CANNOT_FAIL = {
    "range": NUMBERS,
    "map": NUMBERS.map(lambda x: tf.cast(x, tf.float32) * 2).shuffle(4).batch(2).prefetch(2),
    "parallel": NUMBERS.map(lambda x: tf.one_hot(x, 9) / 2.0, num_parallel_calls=2).cache(),
    "slices": SLICES.batch(2, drop_remainder=True).map(lambda x, y: (x[:, ::-1], -y)).repeat(),
    "zipped": tf.data.Dataset.zip((NUMBERS, SLICES)).filter(lambda x, _: x > 2).take(2),
}


@pytest.mark.parametrize("name", MAY_FAIL)
def test_data_set_then_may_fail(name: str) -> None:
    assert not can_be_bundled(MAY_FAIL[name])


@pytest.mark.parametrize("name", CANNOT_FAIL)
def test_data_set_then_cannot_fail(name: str) -> None:
    assert can_be_bundled(CANNOT_FAIL[name])


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
    count = 130  # Not a multiple of the elements that are read at once.
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


def test_call_when_its_reader_is_in_no_hurry_then_ends_without_it(monkeypatch) -> None:
    patience_seconds = 60
    monkeypatch.setattr(function_program, "_LINGER_SECONDS", patience_seconds)
    strategy = programs.strategy()
    with strategy.scope():
        iterator = iter(programs.dataset())
        train = programs.step(models.mlp(), keras.optimizers.SGD(0.01))

        def loop():
            for _ in range(4):
                train(*next(iterator))

        start = time.monotonic()
        strategy.run(loop)
    assert time.monotonic() - start < patience_seconds


def test_long_range_then_is_no_tensor_for_each_number(monkeypatch) -> None:
    strategy, count = programs.strategy(), 1000
    made = []

    def counted(make):
        return lambda *args: made.append(args) or make(*args)

    for owner, name in ((tf, "constant"), (tf.Tensor, "__getitem__")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    with strategy.scope():
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue(ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)

        def loop():
            for number in tf.range(count):
                queue.enqueue(number * 2)

        strategy.run(loop)
    assert int(queue.dequeue()) == 2 * (count - 1)
    assert len(made) < 20


@pytest.mark.parametrize("is_safe", [True, False])
def test_last_elements_of_a_run_then_only_those_that_cannot_fail_are_read_early(
    is_safe: bool,
) -> None:
    data = tf.data.Dataset.range(100)
    data = data if is_safe else data.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
    data = data.map(lambda x: tf.ensure_shape(tf.cast(x, tf.int32), [])) if not is_safe else data
    strategy = programs.strategy()
    with strategy.scope():
        queue, iterator = ipu.ipu_outfeed_queue.IPUOutfeedQueue(), iter(data)

        def loop():
            for _ in range(20):
                queue.enqueue(next(iterator))

        for run in range(5):
            strategy.run(loop)
            assert (iterator.num_held > 0) is (is_safe and run < 4)
    np.testing.assert_array_equal(queue.dequeue().numpy().reshape(-1), np.arange(100))
    with pytest.raises(tf.errors.OutOfRangeError, match="has only 0 more"):
        strategy.run(loop)
