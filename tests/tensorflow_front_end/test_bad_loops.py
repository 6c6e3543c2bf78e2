"""Loops that a device cannot run: the error names the reason, and the next run works."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

Queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue


class Program:
    """A model, an optimiser, a queue and an iterator over numbered elements."""

    def __init__(self, batches: int = 16, *, repeats: bool = True) -> None:
        self.strategy = programs.strategy()
        with self.strategy.scope():
            self.model, self.optimizer = models.mlp(), keras.optimizers.SGD(0.1)
            self.queue = Queue()
            self.iterator = iter(programs.dataset(batches, repeats=repeats))
            self.train = programs.step(self.model, self.optimizer)

    def run(self, count: int) -> list[float]:
        """Trains the model, and returns the losses."""

        def loop():
            for _ in range(count):
                self.queue.enqueue(self.train(*next(self.iterator)))

        self.strategy.run(loop)
        return list(self.queue.dequeue().numpy())

    def check_next(self, first: int = 0, count: int = 3) -> None:
        """Checks that the program trains from the first element, as if nothing had run before."""
        eager = models.mlp()
        batches = [[each] for each in programs.batches_of(first + count)[first:]]
        wanted = programs.eager_losses(eager, keras.optimizers.SGD(0.1), batches)
        np.testing.assert_allclose(self.run(count), wanted, atol=1e-5)
        assert models.largest_difference(eager, self.model) < 2e-6


def test_iterator_when_it_ends_in_a_loop_then_its_elements_are_kept() -> None:
    program = Program(6, repeats=False)
    before = program.run(2)
    weights = [variable.numpy() for variable in program.model.weights]
    with pytest.raises(tf.errors.OutOfRangeError, match="takes 5 elements, .* has only 4 more"):
        program.run(5)
    for wanted, variable in zip(weights, program.model.weights, strict=True):
        np.testing.assert_array_equal(variable.numpy(), wanted)
    assert int(program.optimizer.iterations) == 2
    eager = models.mlp()
    wanted = programs.eager_losses(
        eager, keras.optimizers.SGD(0.1), [[each] for each in programs.batches_of(6, 6)]
    )
    np.testing.assert_allclose(before + program.run(4), wanted, atol=1e-5)


def test_iterator_when_at_its_end_then_the_first_run_says_so() -> None:
    program = Program(1, repeats=False)
    with pytest.raises(tf.errors.OutOfRangeError, match="has only 1 more"):
        program.run(3)
    program.run(1)
    with pytest.raises(tf.errors.OutOfRangeError, match="has only 0 more"):
        program.run(1)


def test_one_of_two_iterators_when_it_ends_then_the_other_loses_nothing() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        queue = Queue()
        long, short = (
            iter(tf.data.Dataset.range(n).map(lambda x: tf.cast(x, tf.int32))) for n in (9, 3)
        )

        def loop(count):
            for _ in range(count):
                queue.enqueue((next(long), next(short)))

        with pytest.raises(tf.errors.OutOfRangeError, match="takes 4 elements"):
            strategy.run(loop, args=[4])
        strategy.run(loop, args=[3])
        np.testing.assert_array_equal(queue.dequeue()[0].numpy(), range(3))


def test_batches_when_of_another_shape_then_are_refused_where_they_are_read() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        rest = tf.data.Dataset.from_tensor_slices(np.zeros((10, 3), np.float32)).batch(4)
        with pytest.raises(ValueError, match=r"\(None, 3\).*drop_remainder=True"):
            iter(rest)
        with pytest.raises(ValueError, match="drop_remainder=True"):
            ipu.ipu_infeed_queue.IPUInfeedQueue(rest)


def test_elements_when_not_of_the_shape_that_was_said_then_the_run_is_refused() -> None:
    """A Python function may yield another shape than it has declared."""
    sizes = iter([4, 4, 3, 4, 4])

    def make(_):
        return np.zeros((next(sizes), 3), np.float32)

    def declared(number):
        value = tf.numpy_function(make, [number], tf.float32)
        value.set_shape((4, 3))
        return value

    strategy = programs.strategy()
    with strategy.scope():
        queue = Queue()
        iterator = iter(tf.data.Dataset.range(5).map(declared))

        def loop(count):
            for _ in range(count):
                queue.enqueue(next(iterator))

        strategy.run(loop, args=[2])
        with pytest.raises((ValueError, Error, tf.errors.InvalidArgumentError), match="3, 3|shape"):
            strategy.run(loop, args=[1])


def only_sometimes(program, number):
    if number % 2 == 0:
        program.queue.enqueue(number)


def after_a_while(program, number):
    next(program.iterator)
    if number:
        program.queue.enqueue(number)


def twice(program, number):
    program.queue.enqueue(number)
    program.queue.enqueue(number)


def two_optimizers(program, number):
    batch = next(program.iterator)
    programs.step(program.model, keras.optimizers.SGD(0.1))(*batch)
    programs.step(program.model, keras.optimizers.SGD(0.2))(*batch)


def unlike_elements(program, number):
    for _ in range(2 - int(number > 0)):
        next(program.iterator)
    program.queue.enqueue(number)


def with_numpy(program, number):
    x, _ = next(program.iterator)
    program.queue.enqueue(float(keras.ops.sum(program.model(x))))


def with_a_condition(program, number):
    x, _ = next(program.iterator)
    if keras.ops.sum(program.model(x)) > 0:
        x = x + 1
    program.queue.enqueue(x)


def with_print(program, number):
    x, _ = next(program.iterator)
    tf.print(keras.ops.sum(x))
    program.queue.enqueue(x)


def with_a_jacobian(program, number):
    x, _ = next(program.iterator)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = program.model(x)
    program.queue.enqueue(tape.jacobian(y, x))


REFUSED = {
    only_sometimes: (Error, "reached in some iterations only"),
    after_a_while: (Error, "reached in some iterations only"),
    twice: (ValueError, "An outfeed can only be enqueued once"),
    two_optimizers: (Error, "reached in some iterations only"),  # Each iteration has its own.
    unlike_elements: (Error, "reached in some iterations only"),
    with_numpy: (Error, "float.. of a tensor.*known only while the program runs"),
    with_a_condition: (Error, "a condition of Python.*known only while the program runs"),
    with_print: (Error, "tf.print shows values of the host.*IPUOutfeedQueue"),
    with_a_jacobian: (Error, "GradientTape.jacobian is not captured"),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_body_when_a_device_cannot_run_it_then_says_so_and_the_next_run_works(body) -> None:
    program = Program()
    error, said = REFUSED[body]

    def loop():
        for number in range(4):
            body(program, number)

    for _ in range(2):
        with pytest.raises(error, match=said):
            program.strategy.run(loop)
    program.check_next()


def test_loops_when_there_are_two_then_are_refused() -> None:
    program = Program()

    def loop():
        for _ in range(2):
            program.queue.enqueue(next(program.iterator))
        for _ in range(2):
            next(program.iterator)

    with pytest.raises(Error, match="a second one follows"):
        program.strategy.run(loop)
    program.check_next()


def test_loop_when_its_count_is_a_tensor_then_the_way_out_is_said() -> None:
    program = Program()

    def loop(count):
        for _ in tf.range(count):
            program.queue.enqueue(next(program.iterator)[0])

    with pytest.raises(Error, match="how often a loop runs.*a number of Python"):
        program.strategy.run(loop, args=[tf.constant(3)])
    program.strategy.run(loop, args=[3])
    assert program.queue.dequeue().shape == (3, 4, 12)


def test_loop_when_left_by_break_then_is_refused() -> None:
    program = Program()

    def loop():
        for number in range(9):
            next(program.iterator)
            if number == 0:
                break

    with pytest.raises(Error, match="left by break"):
        program.strategy.run(loop)
    program.check_next()


def test_function_when_it_fails_then_the_error_is_its_own_and_the_next_run_works() -> None:
    program = Program()

    def loop():
        for _ in range(3):
            x, _ = next(program.iterator)
            program.queue.enqueue(x)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        program.strategy.run(loop)
    with pytest.raises(RuntimeError, match="made in the scope of an IPUStrategy"):
        next(program.iterator)
    program.check_next()


def test_value_of_an_earlier_iteration_when_it_cannot_be_handed_on_then_is_refused() -> None:
    program = Program()

    def loop():
        kept = []
        for _ in range(4):
            x, _ = next(program.iterator)
            kept.append(keras.ops.sum(x))
            program.queue.enqueue(kept[0])

    with pytest.raises(Error, match="A value of one iteration is used in another"):
        program.strategy.run(loop)
    program.check_next()


def test_scope_when_left_by_an_error_then_nothing_of_it_is_left() -> None:
    data = programs.dataset(2)
    strategy = programs.strategy()
    init = keras.Model.__init__
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert keras.Model.__init__ is init
    assert not isinstance(iter(data), ipu.ipu_strategy.Infeed)


def test_iterator_of_the_scope_when_read_on_the_host_then_says_where_to_read_it() -> None:
    program = Program()
    with pytest.raises(RuntimeError, match="call next.* in the function that strategy.run runs"):
        next(program.iterator)
    program.check_next()


def test_iterators_when_of_the_host_then_are_ordinary_ones() -> None:
    with programs.strategy(enable_dataset_iterators=False).scope():
        x, _ = next(iter(programs.dataset(2)))
    np.testing.assert_array_equal(x.numpy(), programs.arrays(2)[0][:4])
    with programs.strategy().scope():
        outside = programs.dataset(2)
    assert next(iter(outside))[0].shape == (4, 12)


@pytest.mark.parametrize("kind", [np.float64(1.0), tf.constant(1.0, tf.float64), np.ones(3)])
def test_argument_when_double_then_is_refused(kind) -> None:
    with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
        programs.strategy().run(lambda x: x, args=[kind])


def test_argument_when_a_string_of_tensorflow_then_is_refused() -> None:
    with pytest.raises(TypeError, match="Unsupported data type for input"):
        programs.strategy().run(lambda x: x, args=[tf.constant("text")])


def test_infeed_queue_when_misused_then_is_refused() -> None:
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(programs.dataset(2))
    with pytest.raises(ValueError, match="infeed_queue"):
        queue.get_next()
    for depth in (0, 256):
        with pytest.raises(ValueError, match=f"from 1 to 255, not {depth}"):
            ipu.ipu_infeed_queue.IPUInfeedQueue(programs.dataset(2), prefetch_depth=depth)
    with pytest.raises(RuntimeError, match="outside of the IPU"):
        ipu.loops.repeat(3, lambda x, y: None, infeed_queue=queue)


def test_repeat_when_the_body_does_not_fit_then_is_refused() -> None:
    strategy = programs.strategy()
    repeat = ipu.loops.repeat
    with pytest.raises(TypeError, match="Supplied loop body function cannot be called"):
        strategy.run(lambda: repeat(3, lambda a: a, [1.0, 2.0]))
    with pytest.raises(TypeError, match="returns 1 values, but takes 2"):
        strategy.run(lambda: repeat(3, lambda a, b: a, [1.0, 2.0]))
    with pytest.raises(TypeError, match="Mismatch of input 0 .*float32.*int32"):
        strategy.run(
            lambda x: repeat(3, lambda a: keras.ops.cast(a, "int32"), x), args=[np.float32(1)]
        )
    for count in (2.5, np.int32(3)):  # A tensor among the arguments is the device's.
        with pytest.raises(TypeError, match="repeat takes an integer that is known"):
            strategy.run(lambda n: repeat(n, lambda a: a + 1.0, 1.0), args=[count])


def test_while_loop_when_its_condition_is_of_the_device_then_is_refused() -> None:
    strategy = programs.strategy()
    with pytest.raises(Error, match="must depend on a counter"):
        strategy.run(lambda: ipu.loops.while_loop(lambda a: a > 0, lambda a: a * 2, [1]))
    limit, repeat = tf.Variable(3), ipu.loops.while_loop
    functions = [
        lambda n: repeat(lambda i, n: i < n, lambda i, n: (i + 1, n), [0, n]),
        lambda n: repeat(lambda i: bool(i < n), lambda i: i + 1, [0]),
        lambda n: repeat(lambda n: n < 9, lambda n: n + 1, [n]),
        lambda n: repeat(lambda i: i < limit, lambda i: i + 1, [tf.constant(0)]),
    ]
    for function in functions:
        said = "depends on a value of the IPU.*Count with a number|tensor as a condition of Python"
        with pytest.raises((Error, TypeError), match=said):
            strategy.run(function, args=[np.int32(5)])


def test_iterator_when_two_threads_run_loops_then_each_element_is_used_once() -> None:
    strategy, count = programs.strategy(), 20
    with strategy.scope():
        queues = [Queue(), Queue()]
        iterator = iter(tf.data.Dataset.range(1000).map(lambda x: tf.cast(x, tf.int32)))

        def loop(number):
            for _ in range(count):
                queues[number].enqueue(next(iterator))

        threads = [threading.Thread(target=strategy.run, args=(loop, [n])) for n in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(timeout=60)
    found = [list(queue.dequeue().numpy()) for queue in queues]
    assert sorted(found[0] + found[1]) == list(range(2 * count))


def numbers_of(strategy, dataset):
    """Returns a function that runs `count` iterations and returns their elements."""
    with strategy.scope():
        queue, iterator = Queue(), iter(dataset.map(lambda x: tf.cast(x, tf.int32)))

        def loop(count):
            for _ in range(count):
                queue.enqueue(next(iterator))

    def run(count: int) -> list[int]:
        try:
            strategy.run(loop, args=[count])
        finally:
            if queue.enqueued:
                run.arrived = list(queue.dequeue().numpy())
        return run.arrived

    run.arrived = []
    return run


UNKNOWN_LENGTH = {
    "known": lambda: tf.data.Dataset.range(150),
    "not known": lambda: tf.data.Dataset.range(300).filter(lambda x: x < 150),
    "of Python": lambda: tf.data.Dataset.from_generator(
        lambda: iter(range(150)), output_signature=tf.TensorSpec((), tf.int64)
    ),
}


@pytest.mark.parametrize("length", UNKNOWN_LENGTH)
def test_long_loop_when_its_data_end_then_nothing_ran_and_nothing_is_lost(length: str) -> None:
    run = numbers_of(programs.strategy(), UNKNOWN_LENGTH[length]())
    assert run(20) == list(range(20))
    with pytest.raises(tf.errors.OutOfRangeError, match="takes 140 elements, .* only 130 more"):
        run(140)
    assert run.arrived == []
    assert run(130) == list(range(20, 150))


def checked_by_python(number):
    def check(value):
        if value == 100:
            raise ValueError("not this one")
        return value

    result = tf.numpy_function(check, [number], tf.int64)
    result.set_shape(())
    return result


def checked_by_tensorflow(number):
    wanted = tf.constant(100, tf.int64)
    check = tf.debugging.assert_none_equal(number, wanted, message="not this one")
    with tf.control_dependencies([check]):
        return tf.identity(number)


@pytest.mark.parametrize("check", [checked_by_python, checked_by_tensorflow])
def test_long_loop_when_an_element_fails_then_what_ran_counts_and_it_goes_on(check) -> None:
    run = numbers_of(programs.strategy(), tf.data.Dataset.range(10**6).map(check))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not this one"):
        run(120)
    assert run.arrived == list(range(60))
    assert run(120) == [*range(60, 100), *range(101, 181)]


@pytest.mark.parametrize("owner", [tf, keras])
def test_long_loop_when_an_element_fails_then_variables_have_what_ran(owner) -> None:
    strategy = programs.strategy()
    with strategy.scope():
        seen = owner.Variable(0.0)
        iterator = iter(tf.data.Dataset.range(10**6).map(checked_by_tensorflow))

        def loop():
            for _ in range(120):
                seen.assign_add(tf.cast(next(iterator), tf.float32))

        for count in (60, 120):  # Two runs stop where element 100 is read, or at the end.
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                strategy.run(loop)
            wanted = sum(range(60)) if count == 60 else sum(range(181)) - 100
            assert float(seen.numpy()) == wanted


def test_data_when_they_read_a_variable_then_each_run_sees_what_was_assigned_before() -> None:
    factor = tf.Variable(1, dtype=tf.int64)
    data = tf.data.Dataset.range(20).map(lambda x: x * factor)
    options = tf.data.Options()
    # TensorFlow's own optimisations would also read ahead.
    options.experimental_optimization.apply_default_optimizations = False
    run = numbers_of(programs.strategy(), data.with_options(options))
    assert run(3) == [0, 1, 2]
    factor.assign(10)
    assert run(3) == [30, 40, 50]


def test_function_when_several_threads_run_it_then_they_take_turns() -> None:
    strategy, count, runs = programs.strategy(), 100, 4
    with strategy.scope():
        queue, total = Queue(), keras.Variable(0.0)
        iterator = iter(tf.data.Dataset.range(10**6).map(lambda x: tf.cast(x, tf.float32)))

        def loop():
            for _ in range(count):
                number = next(iterator)
                queue.enqueue(number)
                total.assign_add(number)

    def run_often() -> None:
        for _ in range(runs):
            strategy.run(loop)

    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(run_often) for _ in range(3)]:
            each.result(timeout=60)
    wanted = np.arange(3 * runs * count)
    np.testing.assert_array_equal(queue.dequeue().numpy(), wanted)
    assert float(total.numpy()) == wanted.sum()
