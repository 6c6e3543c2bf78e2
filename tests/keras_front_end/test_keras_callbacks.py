"""Keras's own callbacks, files and schedules with models on virtual IPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

from poptorch_emu import Error  # noqa: E402

pytestmark = pytest.mark.feature("Keras: callbacks and files", fidelity="exact")

NEAR = 1e-6
callbacks, optimizers = keras.callbacks, keras.optimizers


@pytest.fixture(autouse=True)
def _one_ipu():
    models.use_ipus(1)


def both(train):
    """Returns the results of `train(is_on_ipus)` for eager Keras and for virtual IPUs."""
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
    """Batches of 4 rows in double precision."""

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
    np.testing.assert_allclose(predicted, keras.ops.convert_to_numpy(model(x)), atol=NEAR)


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


class Noted(keras.callbacks.Callback):
    """Records the calls for batches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list = []

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.seen.append((batch, logs["loss"], logs["accuracy"]))

    def on_test_batch_end(self, batch, logs=None) -> None:
        self.seen.append((batch, logs["loss"]))


def test_callbacks_when_asynchronous_then_are_called_for_each_step_as_eager_keras_does() -> None:
    x, labels = models.data()
    found = []
    for is_on_ipus in (False, True):
        model, noted = built(is_on_ipus, optimizers.SGD(0.1)), Noted()
        if is_on_ipus:
            model.set_asynchronous_callbacks(True)
            model.compile(
                optimizers.SGD(0.1),
                models.cross_entropy(),
                metrics=["accuracy"],
                steps_per_execution=4,
            )
        else:
            model.compile(optimizers.SGD(0.1), models.cross_entropy(), metrics=["accuracy"])
        settings = {"batch_size": 4, "verbose": 0, "callbacks": [noted]}
        model.fit(x, labels, shuffle=False, epochs=2, **settings)
        model.evaluate(x, labels, **settings)
        found.append(noted.seen)
    eager, mine = found
    assert len(eager) == len(mine) == 5 * len(x) // 4
    assert [each[0] for each in eager] == [each[0] for each in mine]
    for one, other in zip(eager, mine, strict=True):
        if one[0] != "begin":
            np.testing.assert_allclose(other[1:], one[1:], atol=1e-5)


def test_callbacks_when_one_evaluates_the_model_then_the_steps_that_follow_are_not_lost() -> None:
    x, labels = models.data()
    model, noted, losses = built(True, optimizers.SGD(0.1), steps_per_execution=4), Noted(), []
    model.set_asynchronous_callbacks(True)
    evaluate = callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(
            model.evaluate(x[:4], labels[:4], verbose=0)
        )
    )
    settings = {"batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(x, labels, callbacks=[evaluate, noted], **settings)
    steps = len(x) // 4
    assert len(losses) == steps
    assert [each[0] for each in noted.seen if each[0] != "begin"] == list(range(steps))


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_callbacks_with_replicas_then_are_called_for_each_execution_or_step(
    is_asynchronous: bool,
) -> None:
    models.use_ipus(2)
    x, labels = models.data()
    noted = Noted()
    with models.SCOPE():
        model = models.mlp()
        model.set_asynchronous_callbacks(is_asynchronous)
        model.compile("sgd", models.cross_entropy(), metrics=["accuracy"], steps_per_execution=2)
        model.fit(x, labels, batch_size=4, verbose=0, callbacks=[noted])
    steps = len(x) // 8
    ends = [each[0] for each in noted.seen if each[0] != "begin"]
    assert ends == (list(range(steps)) if is_asynchronous else list(range(1, steps, 2)))


def test_original_options_then_are_taken_or_named() -> None:
    model = built(True, optimizers.SGD(0.1))
    model.set_infeed_queue_options(prefetch_depth=2)
    model.set_outfeed_queue_options(buffer_depth=2)
    model.set_pipelining_options(
        4,
        None,
        True,
        gradient_accumulation_dtype="float32",
        forward_propagation_stages_poplar_options=[],
        continuous_weight_updates=False,
    )
    model.set_gradient_accumulation_options(4, dtype=None)
    for call, error, said in [
        (lambda: model.set_asynchronous_callbacks(1), TypeError, "asynchronous must be True"),
        (lambda: model.set_infeed_queue_options(dataset=1), ValueError, "Keras decides"),
        (lambda: model.set_outfeed_queue_options(outfeed_mode=1), ValueError, "Keras decides"),
        (lambda: model.set_infeed_queue_options(prefetch_dept=2), TypeError, "'prefetch_depth'"),
        (lambda: model.set_infeed_queue_options(prefetch_depth=0), ValueError, "1 to 255, not 0"),
        (lambda: model.set_outfeed_queue_options(buffer_depth="2"), ValueError, "1 to 255"),
        (lambda: model.set_pipelining_options(device_mapping=3), TypeError, "IPU of each stage"),
        (lambda: model.export_for_ipu_serving("folder"), Error, "does not run here"),
        (lambda: model.set_pipelining_options(accumulate_outfeed=1), TypeError, "accumulate"),
        (lambda: model.set_pipelining_options(repeat_count=1), ValueError, "repeat_count"),
        (lambda: model.set_pipelining_options(reduction_method="sum"), ValueError, "_reduction_"),
        (lambda: model.set_pipelining_options(names="x"), TypeError, "Did you mean 'name'"),
        (lambda: model.set_gradient_accumulation_options(opt=1), ValueError, "compile takes"),
        (
            lambda: model.set_gradient_accumulation_options(experimental_normalize_gradients=True),
            ValueError,
            "_reduction_method",
        ),
        (
            lambda: model.set_pipelining_options(continuous_weight_updates=True),
            NotImplementedError,
            "continuous_weight_updates",
        ),
    ]:
        with pytest.raises(error, match=said):
            call()
