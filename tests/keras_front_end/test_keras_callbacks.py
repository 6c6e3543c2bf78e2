"""Keras's own callbacks, files and schedules with models on virtual IPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

pytestmark = pytest.mark.feature("Keras: callbacks and files", fidelity="exact")

NEAR = 1e-6
callbacks, optimizers = keras.callbacks, keras.optimizers


@pytest.fixture(autouse=True)
def _one_ipu():
    models.use_ipus(1)


def both(train):
    """Returns what `train(is_on_ipus)` returns for eager Keras and for virtual IPUs."""
    return [train(False), train(True)]


def built(is_on_ipus: bool, optimizer, **settings):
    with models.scope(is_on_ipus):
        return models.compiled(models.mlp(), optimizer, **settings)


def test_evaluate_and_predict_when_the_last_batch_is_smaller_then_equal_eager_keras() -> None:
    x, labels = models.data()
    eager, model = (built(is_on_ipus, optimizers.SGD(0.1)) for is_on_ipus in (False, True))
    wanted = eager.evaluate(x, labels, batch_size=6, verbose=0)
    np.testing.assert_allclose(
        model.evaluate(x, labels, batch_size=6, verbose=0), wanted, atol=NEAR
    )
    np.testing.assert_allclose(
        model.predict(x, batch_size=6, verbose=0), eager.predict(x, verbose=0), atol=NEAR
    )


class InBatches(keras.utils.PyDataset):
    """Batches of 4, in double precision."""

    def __init__(self, x, labels) -> None:
        super().__init__()
        self.x, self.labels = x.astype(np.float64), labels

    def __len__(self) -> int:
        return len(self.x) // 4

    def __getitem__(self, index: int):
        rows = slice(4 * index, 4 * index + 4)
        return self.x[rows], self.labels[rows]


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_data_of_each_kind_then_trains_as_arrays_do(kind: str) -> None:
    x, labels = models.data()
    tensors = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(labels))
    given = {
        "dataset": InBatches(x, labels),
        "loader": torch.utils.data.DataLoader(tensors, batch_size=4),
    }[kind]
    wanted = built(True, optimizers.SGD(0.1))
    wanted.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
    model = built(True, optimizers.SGD(0.1), steps_per_execution=4)
    model.fit(given, shuffle=False, verbose=0)
    assert models.largest_difference(wanted, model) < NEAR


def test_predict_when_the_model_is_not_built_then_builds_it() -> None:
    with models.SCOPE():
        model = models.of_its_own_class()
    x, _ = models.data()
    predicted = model.predict(x, batch_size=8, verbose=0)
    np.testing.assert_allclose(predicted, np.asarray(model(x).detach()), atol=NEAR)


def test_validation_and_early_stopping_then_stop_where_eager_keras_does() -> None:
    x, labels = models.data()

    def train(is_on_ipus: bool):
        model = built(is_on_ipus, optimizers.SGD(1.0))
        stopping = callbacks.EarlyStopping(patience=1, restore_best_weights=True)
        logs = model.fit(
            x[:24],
            labels[:24],
            batch_size=4,
            epochs=9,
            shuffle=False,
            verbose=0,
            validation_data=(x[24:], labels[24:]),
            callbacks=[stopping],
        ).history
        return model, logs

    (eager, wanted), (model, logs) = both(train)
    assert 1 < len(wanted["loss"]) < 9
    for key in wanted:
        np.testing.assert_allclose(logs[key], wanted[key], atol=1e-5)
    assert models.largest_difference(eager, model) < 1e-5


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_learning_rate_scheduler_then_equals_eager_keras(momentum) -> None:
    x, labels = models.data()

    def train(is_on_ipus: bool):
        model = built(is_on_ipus, optimizers.SGD(0.1, **momentum))
        halve = callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        model.fit(x, labels, batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=[halve])
        return model

    eager, model = both(train)
    assert models.largest_difference(eager, model) < NEAR
    for wanted, variable in zip(eager.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), wanted.numpy(), atol=NEAR)


def test_schedule_then_equals_eager_keras_and_warns_of_several_updates() -> None:
    x, labels = models.data()

    def rate():
        return optimizers.schedules.ExponentialDecay(0.1, decay_steps=4, decay_rate=0.5)

    def train(is_on_ipus: bool):
        model = built(is_on_ipus, optimizers.Adam(rate()))
        model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        return model

    eager, model = both(train)
    assert models.largest_difference(eager, model) < 1e-5
    model = built(True, optimizers.Adam(rate()), steps_per_execution=4)
    with pytest.warns(UserWarning, match="is read once for each execution, which makes 4 updates"):
        model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)


@pytest.mark.parametrize(
    "make", [lambda: optimizers.Adam(1e-3), lambda: optimizers.SGD(0.05, momentum=0.9)]
)
def test_model_when_saved_and_loaded_then_trains_on_as_eager_keras(make, tmp_path: Path) -> None:
    x, labels = models.data()

    def train(is_on_ipus: bool):
        path = tmp_path / f"{is_on_ipus}.keras"
        model = built(is_on_ipus, make(), steps_per_execution=4 if is_on_ipus else 1)
        model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        model.save(path)
        with models.scope(is_on_ipus):
            loaded = keras.models.load_model(path)
        assert models.largest_difference(model, loaded) == 0
        loaded.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        return loaded

    eager, model = both(train)
    assert type(model) is keras.Sequential
    assert models.largest_difference(eager, model) < NEAR
    assert int(model.optimizer.iterations.numpy()) == 16


def test_checkpoints_then_hold_the_weights_of_each_epoch(tmp_path: Path) -> None:
    x, labels = models.data()

    def train(is_on_ipus: bool):
        model = built(is_on_ipus, optimizers.SGD(0.1))
        name = str(tmp_path / f"{is_on_ipus}-{{epoch}}.weights.h5")
        checkpoint = callbacks.ModelCheckpoint(name, save_weights_only=True)
        model.fit(
            x, labels, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[checkpoint]
        )
        model.load_weights(tmp_path / f"{is_on_ipus}-1.weights.h5")
        return model

    assert models.largest_difference(*both(train)) < NEAR


def test_weights_when_read_after_each_batch_then_are_the_newest() -> None:
    x, labels = models.data()

    def train(is_on_ipus: bool):
        model = built(is_on_ipus, optimizers.SGD(0.1))
        seen = []
        read = callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(model.get_weights()[0].copy())
        )
        model.fit(x, labels, batch_size=8, shuffle=False, verbose=0, callbacks=[read])
        return seen

    wanted, seen = both(train)
    assert len(seen) == 4 and np.abs(seen[0] - seen[1]).max() > 0
    np.testing.assert_allclose(seen, wanted, atol=NEAR)
