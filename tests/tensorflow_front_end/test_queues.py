"""Queues that send values to the host while functions on the IPU run."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: outfeed queues", fidelity="exact")

Queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue
Mode = ipu.ipu_outfeed_queue.IPUOutfeedMode


def squares(strategy, queue, count: int = 5, form=lambda x: x):
    """Sends the squares of the numbers that the IPU reads."""
    numbers = tf.data.Dataset.range(10**6).map(lambda x: tf.cast(x, tf.float32))
    with strategy.scope():
        iterator = iter(numbers)

        @tf.function(jit_compile=True)
        def loop(iterator):
            for _ in tf.range(count):
                queue.enqueue(form(next(iterator) ** 2))

    return lambda: strategy.run(loop, args=[iterator])


FORMS = {
    "one": lambda x: x,
    "tuple": lambda x: (x, x + 1),
    "list": lambda x: [x, x + 1],
    "dict": lambda x: {"second": x + 1, "first": x},
    "nested": lambda x: {"a": (x, [x + 1, {"b": x + 2}]), "c": x + 3},
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("mode", [None, Mode.ALL, Mode.LAST])
@pytest.mark.parametrize("form", FORMS)
def test_structure_then_comes_back_with_a_row_for_each_iteration(form, mode, replicas) -> None:
    queue = Queue(mode)
    run = squares(programs.strategy(replicas), queue, form=FORMS[form])
    for start in (0, 5 * replicas):
        run()
        rows = np.arange(start, start + 5 * replicas, dtype=np.float32).reshape(5, replicas) ** 2
        rows = rows[:, 0] if replicas == 1 else rows
        rows = rows[-1] if mode is Mode.LAST else rows
        wanted, found = FORMS[form](rows), queue.dequeue()
        assert type(found) is not np.ndarray
        tf.nest.assert_same_structure(wanted, found)
        for one, other in zip(tf.nest.flatten(wanted), tf.nest.flatten(found), strict=True):
            assert isinstance(other, tf.Tensor)
            np.testing.assert_array_equal(other.numpy(), one)


def test_queue_when_iterated_then_has_an_element_for_each_iteration_once() -> None:
    queue = Queue()
    run = squares(programs.strategy(), queue)
    run()
    assert [float(each) for each in queue] == [0, 1, 4, 9, 16]
    assert list(queue) == [] and queue.dequeue().shape == (0,)
    run()
    assert float(next(iter(queue))) == 25
    assert float(sum(queue)) == 36 + 49 + 64 + 81


def test_queue_when_another_thread_reads_then_it_gets_elements_while_the_loop_runs() -> None:
    count = 6
    strategy, queue = programs.strategy(), Queue()

    with strategy.scope():
        numbers = tf.data.Dataset.range(100).map(lambda x: tf.cast(x, tf.float32))
        iterator = iter(numbers)
        weight = keras.Variable(np.random.default_rng(0).normal(size=(600, 600)) / 25)

        def loop():
            for _ in range(count):
                x = next(iterator)
                product = keras.ops.matmul(weight, weight)
                for _ in range(12):
                    product = keras.ops.matmul(product, weight)
                queue.enqueue((x, keras.ops.sum(product)))

        strategy.run(loop)  # Compiles.
        queue.dequeue()
        came: list[tuple[float, float]] = []

        def read() -> None:
            while len(came) < count:
                came.extend((float(x), time.perf_counter()) for x, _ in queue)
                time.sleep(0.0005)

        reader = threading.Thread(target=read)
        reader.start()
        strategy.run(loop)
        ended = time.perf_counter()
        reader.join(timeout=30)
    assert [value for value, _ in came] == list(range(count, 2 * count))
    assert came[0][1] < ended, "The first element came while the loop ran."
    assert came[0][1] < came[-1][1]


def test_queue_when_two_threads_read_then_each_element_goes_to_one_of_them() -> None:
    count = 200
    queue = Queue()
    run = squares(programs.strategy(), queue, count)
    found: list[list[float]] = [[], []]
    is_over = threading.Event()

    def read(mine: list[float]) -> None:
        while not is_over.is_set():
            mine.extend(float(each) for each in queue)
            time.sleep(0.0005)
        mine.extend(float(each) for each in queue)

    readers = [threading.Thread(target=read, args=[mine]) for mine in found]
    for each in readers:
        each.start()
    run()
    is_over.set()
    for each in readers:
        each.join(timeout=30)
    assert sorted(found[0] + found[1]) == [float(x**2) for x in range(count)]
    assert found[0] == sorted(found[0]) and found[1] == sorted(found[1])


def test_queue_when_nobody_reads_then_the_loop_goes_on() -> None:
    queue = Queue(buffer_depth=1)
    squares(programs.strategy(), queue, 500)()
    assert queue.dequeue().shape == (500,)


def test_several_queues_then_each_has_its_own_values() -> None:
    strategy, queues = programs.strategy(), [Queue(), Queue(Mode.LAST)]

    def loop():
        for number in range(4):
            queues[0].enqueue(number)
            queues[1].enqueue({"number": number * 2})

    strategy.run(loop)
    np.testing.assert_array_equal(queues[0].dequeue().numpy(), range(4))
    assert int(queues[1].dequeue()["number"]) == 6


def test_queue_then_says_whether_something_was_sent() -> None:
    queue = Queue()
    assert not queue.enqueued
    run = squares(programs.strategy(), queue)
    assert not queue.enqueued
    run()
    assert queue.enqueued
    queue.deleter  # noqa: B018 (It empties the queue.)
    assert queue.dequeue().shape == (0,)


def test_types_then_are_those_that_were_sent() -> None:
    strategy, queue = programs.strategy(), Queue()
    values = (np.arange(3, dtype=np.int32), np.ones(2, np.float16), np.array([True, False]))
    with strategy.scope():
        iterator = iter(tf.data.Dataset.from_tensors(values).repeat())

        def loop():
            for _ in range(2):
                queue.enqueue(next(iterator))

        strategy.run(loop)
        found = queue.dequeue()
    for value, each in zip(values, found, strict=True):
        assert each.dtype.as_numpy_dtype == value.dtype
        np.testing.assert_array_equal(each.numpy(), [value, value])


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_layer_when_it_sends_then_the_queue_has_what_it_computes(method: str) -> None:
    queue = Queue()

    class Sending(keras.layers.Layer):
        def call(self, x):
            queue.enqueue({"mean": keras.ops.mean(x, axis=-1)})
            return x

    strategy = programs.strategy()
    x, labels = programs.arrays(4)
    with strategy.scope():
        model = keras.Sequential([keras.Input((12,)), Sending(), keras.layers.Dense(3)])
        models.compiled(model, keras.optimizers.SGD(0.1))
        run = getattr(model, method)
        arguments = () if method == "predict" else (labels,)
        kwargs = {"shuffle": False} if method == "fit" else {}
        run(x, *arguments, batch_size=programs.ROWS, verbose=0, **kwargs)
    means = queue.dequeue()["mean"].numpy()
    np.testing.assert_allclose(means.reshape(-1), x.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"outfeed_mode": "average"}, ValueError, "outfeed_mode must be .*not 'average'"),
        ({"device_ordinal": -1}, ValueError, "device_ordinal must be 0 or more, not -1"),
        ({"buffer_depth": 0}, ValueError, "buffer_depth must be 1 or more, not 0"),
        ({"depth": 2}, TypeError, "no argument 'depth'"),
    ],
)
def test_setting_when_wrong_then_is_refused(settings, error, said: str) -> None:
    with pytest.raises(error, match=said):
        Queue(**settings)


def test_queue_when_used_outside_of_a_function_then_is_refused() -> None:
    queue = Queue()
    with pytest.raises(ValueError, match="dequeue is called before enqueue"):
        queue.dequeue()
    assert list(queue) == []
    with pytest.raises(RuntimeError, match="enqueue is called outside of the IPU"):
        queue.enqueue(tf.constant(1.0))
    last = Queue(Mode.LAST)
    squares(programs.strategy(), last)()
    last.dequeue()
    with pytest.raises(ValueError, match="has received no values"):
        last.dequeue()


@pytest.mark.parametrize("replicas", [1, 2])
def test_value_that_the_host_knows_then_comes_from_each_iteration_and_replica(replicas) -> None:
    strategy, queue = programs.strategy(replicas), Queue()
    constant = np.arange(3, dtype=np.int32)

    def loop():
        for number in range(4):
            queue.enqueue((constant, 7, number))

    strategy.run(loop)
    rows = (4,) if replicas == 1 else (4, replicas)
    array, seven, _ = queue.dequeue()
    np.testing.assert_array_equal(array.numpy(), np.broadcast_to(constant, (*rows, 3)))
    np.testing.assert_array_equal(seven.numpy(), np.full(rows, 7))


def test_queue_when_read_in_parts_then_nothing_is_lost_between_them() -> None:
    queue = Queue()
    run = squares(programs.strategy(), queue, 120)
    run()
    numbers = iter(queue)
    found = [float(next(numbers)) for _ in range(7)]
    run()
    found += list(queue.dequeue().numpy())
    assert found == [float(x) ** 2 for x in range(240)]
