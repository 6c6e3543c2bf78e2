"""Batches and logs of a Keras model's replicas: steps count one replica, metrics the last one."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: pipelines and replicas", fidelity="exact")

NEAR = 1e-6
ROWS = 4
Method = ipu.keras.ReplicatedMetricReductionMethod


class Steps(keras.callbacks.Callback):
    """Records the steps of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.ended: list[int] = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(batch)


def on_replicas(replicas: int = 2, rate: float = 0.0, **settings):
    """Returns a model with a learning rate that is divided by the number of replicas."""
    models.use_ipus(replicas)
    with models.SCOPE():
        model = models.mlp()
    return models.compiled(model, keras.optimizers.SGD(rate / replicas), **settings)


def fit(model, batches: int, **arguments):
    x, labels = models.data(rows=batches * ROWS)
    return model.fit(x, labels, batch_size=ROWS, shuffle=False, verbose=0, **arguments).history


def test_steps_then_are_those_of_one_replica() -> None:
    steps = Steps()
    fit(on_replicas(steps_per_execution=4), 16, callbacks=[steps])
    assert steps.begun == [0, 4] and steps.ended == [3, 7]


def test_steps_when_more_than_an_epoch_has_then_are_lowered_and_that_is_said(caplog) -> None:
    steps = Steps()
    fit(on_replicas(steps_per_execution=16), 16, callbacks=[steps])
    assert steps.ended == [7]
    assert "steps_per_execution is 16, but an epoch has only 8 steps for each of 2" in caplog.text


@pytest.mark.parametrize("arguments", [{}, {"steps_per_epoch": 5}])
def test_batches_when_not_enough_for_all_replicas_then_are_left_out(arguments) -> None:
    model, steps = on_replicas(rate=0.1), Steps()
    with pytest.warns(UserWarning, match="do not divide among 2 replicas: the last 1"):
        fit(model, 5 if not arguments else 10, epochs=1, callbacks=[steps], **arguments)
    assert steps.ended == [0, 1]
    wanted = models.compiled(models.mlp())
    x, labels = models.data(rows=5 * ROWS if not arguments else 10 * ROWS)
    x, labels = x[: 4 * ROWS], labels[: 4 * ROWS]
    wanted.fit(x, labels, batch_size=2 * ROWS, shuffle=False, verbose=0)
    assert models.largest_difference(wanted, model) < NEAR


def test_batches_when_a_generator_has_not_enough_then_are_left_out() -> None:
    def pieces():
        x, labels = models.data(rows=5 * ROWS)
        for start in range(0, len(x), ROWS):
            yield x[start : start + ROWS], labels[start : start + ROWS]

    steps = Steps()
    with (
        pytest.warns(UserWarning, match="ran out of data"),
        pytest.warns(UserWarning, match="do not divide among 2 replicas"),
    ):
        on_replicas().fit(pieces(), callbacks=[steps], shuffle=False, verbose=0)
    assert steps.ended == [0, 1]


def test_batches_when_fewer_than_replicas_then_are_refused() -> None:
    with pytest.raises(ValueError, match="1 batches, but each of 2 replicas takes one"):
        fit(on_replicas(), 1)


def of_replica(number: int, replicas: int, batches: int) -> dict[str, float]:
    """Returns the results of plain Keras for the batches that one replica takes."""
    x, labels = models.data(rows=batches * ROWS)
    mine = [row for row in range(len(x)) if row // ROWS % replicas == number]
    model = models.compiled(models.mlp())
    return model.evaluate(x[mine], labels[mine], batch_size=ROWS, verbose=0, return_dict=True)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("method", [None, "none", "list", Method.SUM, "Mean"])
def test_metrics_then_are_those_of_the_last_replica_or_reduced(method, replicas: int) -> None:
    batches = 8
    model = on_replicas(replicas, steps_per_execution=2)
    if method is not None:
        model.set_replication_options(replicated_metric_reduction_method=method)
    name = getattr(method, "name", method or "none").lower()
    of_each = [of_replica(number, replicas, batches) for number in range(replicas)]
    wanted = {
        key: {
            "none": values[-1],
            "list": values,
            "sum": sum(values),
            "mean": sum(values) / replicas,
        }[name]
        for key in of_each[0]
        for values in ([each[key] for each in of_each],)
    }
    for _ in range(2):  # The second epoch starts the data again.
        logs = fit(model, batches, epochs=2, validation_data=models.data(rows=batches * ROWS))
        for key, value in wanted.items():
            for epoch in range(2):
                np.testing.assert_allclose(logs[key][epoch], value, atol=NEAR)
                np.testing.assert_allclose(logs[f"val_{key}"][epoch], value, atol=NEAR)


@pytest.mark.parametrize("method", ["none", "list"])
def test_evaluation_when_batches_do_not_divide_then_the_last_replica_takes_them(method) -> None:
    model = on_replicas(2)
    model.set_replication_options(method)
    x, labels = models.data(rows=5 * ROWS)
    found = model.evaluate(x, labels, batch_size=ROWS, verbose=0, return_dict=True)
    mine = [row for row in range(len(x)) if row // ROWS in (1, 3, 4)]
    plain = models.compiled(models.mlp())
    wanted = plain.evaluate(x[mine], labels[mine], batch_size=ROWS, verbose=0, return_dict=True)
    for key, value in wanted.items():
        assert np.ravel(found[key])[-1] == pytest.approx(value, abs=NEAR)
    np.testing.assert_allclose(
        model.predict(x, batch_size=ROWS, verbose=0), plain.predict(x, verbose=0), atol=NEAR
    )


def test_replicas_then_each_takes_a_power_of_two_of_the_ipus() -> None:
    """Three stages take four IPUs, so that nine hold two replicas."""
    models.use_ipus(9)
    with models.SCOPE():
        model = models.mlp()
    model.set_pipeline_stage_assignment([0, 1, 2])
    model.set_pipelining_options(5, gradient_accumulation_reduction_method="mean")
    models.compiled(model, keras.optimizers.SGD(0.05), steps_per_execution=5)
    steps = Steps()
    fit(model, 10, callbacks=[steps])
    assert steps.ended == [4]
    wanted = models.compiled(models.mlp())
    x, labels = models.data(rows=10 * ROWS)
    wanted.fit(x, labels, batch_size=10 * ROWS, shuffle=False, verbose=0)
    assert models.largest_difference(wanted, model) < NEAR


@pytest.mark.parametrize("method", ["median", 3])
def test_reduction_of_metrics_when_wrong_then_is_refused(method) -> None:
    kind = ValueError if isinstance(method, str) else TypeError
    with pytest.raises(kind, match="replicated_metric_reduction_method must be one of"):
        on_replicas().set_replication_options(replicated_metric_reduction_method=method)
