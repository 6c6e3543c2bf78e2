"""Calls of the engine that fail: completed updates count, on the host and on the device."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")

COUNT, FAILING = 12, 6  # Number of elements, and index of the element with an infinite number.
NEAR = 2e-6


def strategy() -> ipu.ipu_strategy.IPUStrategy:
    """Returns a strategy whose device stops at infinite numbers."""
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    behaviour = config.floating_point_behaviour
    behaviour.inv = behaviour.div0 = behaviour.oflo = True
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x, labels = programs.arrays(COUNT)
    x[FAILING * programs.ROWS, 0] = np.inf
    return x, labels


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)


RATES = {"constant": lambda: 0.01, "schedule": schedule}


def check_same_state(eager, eager_optimizer, model, optimizer) -> None:
    assert int(optimizer.iterations) == int(eager_optimizer.iterations)
    for wanted, variable in zip(eager.weights, model.weights, strict=True):
        np.testing.assert_allclose(variable.numpy(), wanted.numpy(), atol=NEAR)
    pairs = zip(eager_optimizer.variables, optimizer.variables, strict=True)
    for wanted, variable in pairs:
        np.testing.assert_allclose(variable.numpy(), wanted.numpy(), atol=NEAR, rtol=1e-5)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_loop_when_an_iteration_fails_then_the_updates_before_count(accumulation, rate) -> None:
    of_ipu = strategy()
    with of_ipu.scope():
        model, queue = models.mlp(), ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        optimizer = keras.optimizers.Adam(RATES[rate]())
        wrapped = (
            optimizer
            if accumulation == 1
            else ipu.optimizers.GradientAccumulationOptimizerV2(optimizer, accumulation)
        )
        data = tf.data.Dataset.from_tensor_slices(arrays())
        iterator = iter(data.batch(programs.ROWS, drop_remainder=True))
        train = programs.step(model, wrapped)

        @tf.function
        def loop(count):
            for _ in tf.range(count):
                queue.enqueue(train(*next(iterator)))

        with pytest.raises(Error, match="floating-point exception"):
            of_ipu.run(loop, args=[10])
    eager, of_host = models.mlp(), keras.optimizers.Adam(RATES[rate]())
    batches = programs.batches_of(COUNT, COUNT)
    before = [batches[n : n + accumulation] for n in range(0, FAILING, accumulation)]
    losses = programs.eager_losses(eager, of_host, before)
    check_same_state(eager, of_host, model, optimizer)
    np.testing.assert_allclose(queue.dequeue().numpy(), losses, atol=1e-5)
    # The next run continues behind the update that failed.
    rest = batches[FAILING + accumulation :]
    of_ipu.run(loop, args=[len(rest)])
    after = [rest[n : n + accumulation] for n in range(0, len(rest), accumulation)]
    losses = programs.eager_losses(eager, of_host, after)
    np.testing.assert_allclose(queue.dequeue().numpy(), losses, atol=1e-5)
    check_same_state(eager, of_host, model, optimizer)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_fit_when_an_execution_fails_then_the_updates_before_count(accumulation: int) -> None:
    of_ipu = strategy()
    with of_ipu.scope():
        model, optimizer = models.mlp(), keras.optimizers.Adam(0.01)
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
        models.compiled(model, optimizer, steps_per_execution=4)
    with pytest.raises(Error, match="floating-point exception"):
        model.fit(*arrays(), batch_size=programs.ROWS, shuffle=False, verbose=0)
    eager, of_host = models.mlp(), keras.optimizers.Adam(0.01)
    batches = programs.batches_of(COUNT, COUNT)
    before = [batches[n : n + accumulation] for n in range(0, FAILING, accumulation)]
    programs.eager_losses(eager, of_host, before)
    check_same_state(eager, of_host, model, optimizer)
    model.fit(*programs.arrays(COUNT), batch_size=programs.ROWS, shuffle=False, verbose=0)
    after = [batches[n : n + accumulation] for n in range(0, COUNT, accumulation)]
    programs.eager_losses(eager, of_host, after)
    check_same_state(eager, of_host, model, optimizer)


def test_loop_when_its_reader_is_interrupted_then_what_ran_counts(monkeypatch) -> None:
    """Ctrl-C comes while the host reads results, after the engine has completed all updates."""
    of_ipu = strategy()
    with of_ipu.scope():
        model, optimizer = models.mlp(), keras.optimizers.SGD(0.1, momentum=0.9)
        queue, iterator = ipu.ipu_outfeed_queue.IPUOutfeedQueue(), iter(programs.dataset())
        train = programs.step(model, optimizer)

        def loop():
            for _ in range(4):
                queue.enqueue(train(*next(iterator)))

    def put(*_) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(queue, "put", put)
        of_ipu.run(loop)
    eager, of_host = models.mlp(), keras.optimizers.SGD(0.1, momentum=0.9)
    batches = [[each] for each in programs.batches_of(8)]
    programs.eager_losses(eager, of_host, batches[:4])
    check_same_state(eager, of_host, model, optimizer)
    of_ipu.run(loop)
    losses = programs.eager_losses(eager, of_host, batches[4:])
    np.testing.assert_allclose(queue.dequeue().numpy(), losses, atol=1e-5)
