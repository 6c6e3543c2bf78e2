"""Training loops that `IPUStrategy.run` runs, beside eager loops of Keras."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402
from support.library_calls import as_library  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

# Tolerance for sums in another order, which Adam enlarges by dividing by small roots.
NEAR = 2e-6
optimizers = keras.optimizers
Queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue


def check_same_training(eager, model, eager_optimizer, optimizer) -> None:
    for wanted, variable in zip(eager.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), wanted.numpy(), atol=NEAR)
    pairs = zip(eager_optimizer.variables, optimizer.variables, strict=True)
    for wanted, variable in pairs:
        np.testing.assert_allclose(variable.numpy(), wanted.numpy(), atol=NEAR, rtol=1e-5)


OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: optimizers.Adam(1e-2),
    "adamw": lambda: optimizers.AdamW(1e-2),
    "rmsprop": lambda: optimizers.RMSprop(1e-3, momentum=0.9),
}
DECORATORS = {
    "none": lambda function: function,
    "tf.function": tf.function,
    "jit_compile": tf.function(jit_compile=True),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "convolutional", "of its own class"])
def test_loop_then_trains_as_eager_keras_does(model, optimizer, replicas: int) -> None:
    make, shape = models.MODELS[model]
    count = 6
    x, labels = models.data(shape, rows=2 * count * replicas * programs.ROWS)
    batches = tf.data.Dataset.from_tensor_slices((x, labels.astype(np.int32)))
    batches = batches.batch(programs.ROWS, drop_remainder=True)
    strategy = programs.strategy(replicas)
    with strategy.scope():
        trained = make()
        of_device, queue = OPTIMIZERS[optimizer](), Queue()
        iterator = iter(batches)
        train = programs.step(trained, of_device)

        @tf.function(jit_compile=True)
        def loop(iterator, count):
            for _ in tf.range(count):
                queue.enqueue(train(*next(iterator)))

        losses = []
        for _ in range(2):  # The second run continues the training.
            strategy.run(loop, args=[iterator, count])
            losses += list(queue.dequeue().numpy().reshape(-1))
    eager, of_host = make(), OPTIMIZERS[optimizer]()
    torch_batches = [tuple(map(to_torch, batch)) for batch in batches]
    together = [torch_batches[i : i + replicas] for i in range(0, len(torch_batches), replicas)]
    wanted = programs.eager_losses(eager, of_host, together)
    np.testing.assert_allclose(losses, wanted, atol=1e-5)
    check_same_training(eager, trained, of_host, of_device)


def to_torch(value):
    return programs.torch.from_numpy(value.numpy())


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("kind", ["range", "tf.range", "repeat", "while_loop", "for", "enumerate"])
def test_loop_when_written_otherwise_then_is_the_same(kind: str, decorator: str) -> None:
    count = 5
    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer, queue = models.mlp(), optimizers.SGD(0.1), Queue()
        data = programs.dataset(count, repeats=False)
        iterator, infeed = iter(data), ipu.ipu_infeed_queue.IPUInfeedQueue(data)
        train = programs.step(model, optimizer)

        def body(x, labels):
            queue.enqueue(train(x, labels))

        @DECORATORS[decorator]
        def loop():
            if kind == "range":
                for _ in range(count):
                    body(*next(iterator))
            elif kind == "tf.range":
                for _ in tf.range(tf.constant(count)):
                    body(*next(iterator))
            elif kind == "for":
                for x, labels in iterator:
                    body(x, labels)
            elif kind == "enumerate":
                for _, (x, labels) in enumerate(iterator):
                    body(x, labels)
            elif kind == "repeat":
                ipu.loops.repeat(count, body, infeed_queue=infeed)
            else:
                ipu.loops.while_loop(
                    lambda number: number < count,
                    lambda number, *element: (number + 1, body(*element)),
                    [0],
                    infeed,
                )

        strategy.run(loop)
        losses = queue.dequeue().numpy()
    eager = models.mlp()
    wanted = programs.eager_losses(
        eager, optimizers.SGD(0.1), [[each] for each in programs.batches_of(count, count)]
    )
    np.testing.assert_allclose(losses, wanted, atol=1e-6)
    assert models.largest_difference(eager, model) < NEAR


def test_local_variables_when_handed_on_then_count_and_add_up() -> None:
    count = 7
    strategy = programs.strategy()
    with strategy.scope():
        iterator = iter(programs.dataset())

        @tf.function
        def loop(iterator):
            total, number, both = 0.0, 0, {"most": tf.constant(-100.0), "last": tf.zeros([4])}
            for index in tf.range(count):  # noqa: B007 (It is returned.)
                x, labels = next(iterator)
                total = total + keras.ops.sum(x)
                number = number + 1
                means = keras.ops.mean(x, axis=1)
                both = {"most": keras.ops.maximum(both["most"], x[0, 0]), "last": means}
            return total / count, number, both, index

        for start in (0, count):
            mean, number, both, index = strategy.run(loop, args=[iterator])
            x = programs.arrays(16)[0].reshape(16, 4, 12)[start : start + count]
            assert float(mean) == pytest.approx(x.sum() / count, abs=1e-4)
            assert int(number) == count and int(index) == count - 1
            assert float(both["most"]) == pytest.approx(x[:, 0, 0].max())
            np.testing.assert_allclose(both["last"].numpy(), x[-1].mean(axis=1), atol=1e-6)


def test_repeat_when_it_hands_values_on_then_computes_without_a_model() -> None:
    strategy = programs.strategy()

    def powers(n, start):
        return ipu.loops.repeat(n, lambda a, b: (a * 2, b + a), [start, 0.0])

    doubled, total = strategy.run(powers, args=[10, np.float32(3)])
    assert float(doubled) == 3 * 2**10 and float(total) == 3 * (2**10 - 1)
    doubled, total = strategy.run(powers, args=[10, np.float32(5)])
    assert float(doubled) == 5 * 2**10, "The first iteration begins anew in each run."


def test_function_without_a_loop_then_runs_once() -> None:
    strategy = programs.strategy(enable_dataset_iterators=False)
    with strategy.scope():
        model, optimizer = models.mlp(), optimizers.SGD(0.1)
        train = tf.function(programs.step(model, optimizer))
        losses = [
            float(strategy.run(train, args=batch)) for batch in programs.dataset(5, repeats=0)
        ]
    eager = models.mlp()
    wanted = programs.eager_losses(
        eager, optimizers.SGD(0.1), [[each] for each in programs.batches_of(5, 5)]
    )
    np.testing.assert_allclose(losses, wanted, atol=1e-6)
    assert models.largest_difference(eager, model) < NEAR


def test_model_when_unbuilt_then_is_built_by_the_loop() -> None:
    def make():
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])

    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer = make(), optimizers.Adam(0.01)
        train, iterator = programs.step(model, optimizer), iter(programs.dataset())

        def loop():
            for _ in range(4):
                train(*next(iterator))

        strategy.run(loop)
    eager, of_host = make(), optimizers.Adam(0.01)
    programs.eager_losses(eager, of_host, [[each] for each in programs.batches_of(4)])
    check_same_training(eager, model, of_host, optimizer)


def test_gradients_when_changed_then_the_optimizer_gets_those() -> None:
    def changed(gradients):
        return [0.5 * keras.ops.clip(each, -0.05, 0.05) for each in gradients]

    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer, queue = models.mlp(), optimizers.Adam(0.01), Queue()
        loss, iterator = models.cross_entropy(), iter(programs.dataset())

        def loop():
            for _ in range(4):
                x, labels = next(iterator)
                with tf.GradientTape() as tape:
                    value = loss(labels, model(x, training=True))
                gradients = tape.gradient(value, model.trainable_variables)
                queue.enqueue({"norm": keras.ops.norm(gradients[0]), "loss": value})
                pairs = zip(changed(gradients), model.trainable_variables, strict=True)
                optimizer.apply_gradients(pairs)

        strategy.run(loop)
        norms = queue.dequeue()["norm"].numpy()
    eager, of_host, wanted = models.mlp(), optimizers.Adam(0.01), []

    @as_library
    def train(x, labels):
        eager.zero_grad()
        loss(labels, eager(x, training=True)).backward()
        gradients = [variable.value.grad for variable in eager.trainable_variables]
        wanted.append(float(gradients[0].norm()))
        with programs.torch.no_grad():
            of_host.apply(changed(gradients), eager.trainable_variables)

    for x, labels in programs.batches_of(4):
        train(x, labels)
    np.testing.assert_allclose(norms, wanted, atol=1e-6)
    check_same_training(eager, model, of_host, optimizer)


def test_schedule_then_each_update_has_its_own_rate() -> None:
    def make():
        schedule = optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.1, 0.05, 0.01])
        return optimizers.SGD(schedule, momentum=0.5)

    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer = models.mlp(), make()
        train, iterator = programs.step(model, optimizer), iter(programs.dataset())

        def loop():
            for _ in range(8):
                train(*next(iterator))

        strategy.run(loop)
    eager, of_host = models.mlp(), make()
    programs.eager_losses(eager, of_host, [[each] for each in programs.batches_of(8)])
    check_same_training(eager, model, of_host, optimizer)


def test_fit_and_loops_when_they_take_turns_then_go_on_from_each_other() -> None:
    x, labels = programs.arrays(4)

    def train(model, optimizer, loop):
        models.compiled(model, optimizer)
        for _ in range(2):
            model.fit(x, labels, batch_size=programs.ROWS, shuffle=False, verbose=0)
            loop()
        return model.evaluate(x, labels, batch_size=programs.ROWS, verbose=0)

    strategy = programs.strategy()
    with strategy.scope():
        model, optimizer = models.mlp(), optimizers.Adam(0.01)
        step, iterator = programs.step(model, optimizer), iter(programs.dataset())

        def loop():
            for _ in range(4):
                step(*next(iterator))

        found = train(model, optimizer, lambda: strategy.run(loop))
    eager, of_host = models.mlp(), optimizers.Adam(0.01)
    rounds = iter([programs.batches_of(8)[:4], programs.batches_of(8)[4:]])
    wanted = train(
        eager,
        of_host,
        lambda: programs.eager_losses(eager, of_host, [[each] for each in next(rounds)]),
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    check_same_training(eager, model, of_host, optimizer)


def test_metrics_and_batch_norm_then_are_updated_on_the_device() -> None:
    make, shape = models.MODELS["convolutional"]
    x, labels = models.data(shape)
    data = tf.data.Dataset.from_tensor_slices((x, labels.astype(np.int32))).batch(4, True)
    strategy = programs.strategy()
    with strategy.scope():
        model, accuracy = make(), keras.metrics.SparseCategoricalAccuracy()
        iterator = iter(data)

        def loop(training):
            for _ in range(4):
                batch, wanted = next(iterator)
                accuracy.update_state(wanted, model(batch, training=training))

        strategy.run(loop, args=[True])
        strategy.run(loop, kwargs={"training": False})
    eager, of_host = make(), keras.metrics.SparseCategoricalAccuracy()
    for number, (batch, wanted) in enumerate(data):
        of_host.update_state(wanted, eager(batch, training=number < 4))
    assert float(accuracy.result()) == pytest.approx(float(of_host.result()), abs=1e-6)
    assert models.largest_difference(eager, model) < NEAR


def test_two_elements_in_an_iteration_then_come_in_order() -> None:
    strategy = programs.strategy(2)
    with strategy.scope():
        queue = Queue()
        iterator = iter(tf.data.Dataset.range(16).map(lambda x: tf.cast(x, tf.int32)))

        def loop():
            for _ in range(4):
                queue.enqueue((next(iterator), next(iterator)))

        strategy.run(loop)
        first, second = queue.dequeue()
    np.testing.assert_array_equal(first.numpy(), [[0, 1], [4, 5], [8, 9], [12, 13]])
    np.testing.assert_array_equal(second.numpy(), [[2, 3], [6, 7], [10, 11], [14, 15]])


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_variables_of_tensorflow_then_are_kept_on_the_device_and_come_back(dtype: str) -> None:
    strategy, queue = programs.strategy(), Queue()
    with strategy.scope():
        counter = tf.Variable(2, dtype=dtype)
        total = tf.Variable(tf.zeros([12]))
        iterator = iter(programs.dataset(16))

        @tf.function
        def loop():
            for _ in tf.range(5):
                x, _ = next(iterator)
                counter.assign_add(1)
                total.assign(total + tf.reduce_sum(x, axis=0) * tf.cast(counter, "float32"))
                queue.enqueue({"counter": counter, "double": 2 * counter, "constant": 7})
            return counter

    found = []
    for run in range(2):
        assert int(strategy.run(loop)) == 7 + run * 105
        values = queue.dequeue()
        assert values["counter"].dtype == values["double"].dtype == dtype
        found += list(values["counter"].numpy())
        np.testing.assert_array_equal(values["double"].numpy(), 2 * values["counter"].numpy())
        np.testing.assert_array_equal(values["constant"].numpy(), [7] * 5)
        assert int(counter.numpy()) == found[-1]
        counter.assign_add(100)  # The next run sees a change by the host.
    assert found == [3, 4, 5, 6, 7, 108, 109, 110, 111, 112]
    sums = programs.arrays(16)[0].reshape(16, 4, 12).sum(axis=1)
    wanted = sum(count * sums[number] for number, count in enumerate(found))
    np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-5, atol=1e-4)


def test_variables_of_keras_when_sent_then_are_their_values_of_that_moment() -> None:
    strategy, queue = programs.strategy(), Queue()
    with strategy.scope():
        model, optimizer = models.mlp(), optimizers.SGD(0.1)
        train, iterator = programs.step(model, optimizer), iter(programs.dataset())

        def loop():
            for _ in range(3):
                queue.enqueue((model.trainable_variables[-1],))
                train(*next(iterator))

        strategy.run(loop)
    eager, of_host = models.mlp(), optimizers.SGD(0.1)
    wanted = []
    for batch in programs.batches_of(3):
        wanted.append(eager.trainable_variables[-1].numpy().copy())
        programs.eager_losses(eager, of_host, [[batch]])
    np.testing.assert_allclose(queue.dequeue()[0].numpy(), wanted, atol=1e-6)
