"""Errors for requests of Keras programs that virtual IPUs do not support."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support.forked_programs import run_forked  # noqa: E402
from support.keras_refusals import fit, on_ipus, refuses  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu, keras_version  # noqa: E402

pytestmark = pytest.mark.feature("Keras: what has no counterpart", fidelity="refused")
layers, optimizers = keras.layers, keras.optimizers


@pytest.fixture(autouse=True)
def _one_ipu():
    models.use_ipus(1)


def run_python(code: str, **environment: str) -> str:
    done = run_forked(["-c", code], environment)
    assert done.returncode != 0
    return done.stderr


def test_keras_when_missing_then_says_what_to_install() -> None:
    errors = run_python("import sys; sys.modules['keras'] = None; import poptorch_emu.keras")
    assert "pip install 'poptorch_emu[keras]'" in errors and "KERAS_BACKEND=torch" in errors


def test_keras_when_on_a_backend_that_is_missing_then_says_what_to_set() -> None:
    errors = run_python("import poptorch_emu.keras", KERAS_BACKEND="jax")
    assert "KERAS_BACKEND=torch before the first import of keras" in errors


def test_keras_when_too_old_or_on_another_backend_then_is_refused() -> None:
    keras_version.check("3.15.0", "torch")
    keras_version.check("4.0", "torch")
    with refuses("needs Keras 3.15 or newer, but found 3.14.2", ImportError):
        keras_version.check("3.14.2", "torch")
    with refuses("runs on 'jax'. Set the environment variable KERAS_BACKEND=torch", ImportError):
        keras_version.check("3.15.0", "jax")


def test_steps_when_an_update_does_not_divide_them_then_are_refused() -> None:
    models.use_ipus(2)
    model = on_ipus()
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    with refuses("An execution has 3 steps for each replica, but one .* takes 2", RuntimeError):
        fit(model, steps_per_execution=3)
    with refuses("An execution has 1 steps for each replica, but one .* takes 2", RuntimeError):
        fit(model, rows=8, steps_per_execution=4)


def in_pieces(rows: int, batch_size: int):
    """Yields batches without a length, so that Keras does not know their number."""
    x, labels = models.data(rows=rows)
    for start in range(0, rows, batch_size):
        yield x[start : start + batch_size], labels[start : start + batch_size]


def test_last_batch_when_smaller_then_fit_is_refused() -> None:
    model = on_ipus()
    before = model.get_weights()[0].copy()
    with refuses("A batch of 2 samples in fit, after larger ones: .* batches of one size"):
        fit(model, rows=10)
    assert np.array_equal(before, model.get_weights()[0]), "It is said before the epoch begins."
    x, labels = models.data(rows=10)
    model.fit(x, labels, batch_size=4, steps_per_epoch=2, shuffle=False, verbose=0)
    with refuses("A batch of 2 samples in fit, after larger ones of 4"):
        model.fit(in_pieces(10, 4), shuffle=False, verbose=0)


def test_last_execution_when_shorter_then_fit_is_refused() -> None:
    model = on_ipus()
    with refuses("last execution of the epoch has 2 steps, but a program is compiled for 4"):
        fit(model, rows=24, steps_per_execution=4)
    with (
        refuses("last execution of the epoch has 2 steps, but a program is compiled for 4"),
        pytest.warns(UserWarning, match="ran out of data"),
    ):
        model.fit(in_pieces(24, 4), shuffle=False, verbose=0)


@pytest.mark.parametrize("step", ["train_step", "test_step", "predict_step"])
def test_step_when_overridden_then_is_refused(step: str) -> None:
    kind = type("Own", (models.OfItsOwnClass,), {step: lambda self, data: None})
    model = models.compiled(on_ipus(kind))
    x, labels = models.data()
    with refuses(f"Own overrides {step}, which runs on the host"):
        model.fit(x, labels, batch_size=4, verbose=0)
        model.evaluate(x, labels, batch_size=4, verbose=0)
        model.predict(x, batch_size=4, verbose=0)


def test_model_when_run_eagerly_then_is_refused() -> None:
    with refuses("was compiled with run_eagerly=True, but IPUs run compiled programs"):
        fit(on_ipus(), run_eagerly=True)


class OwnSgd(optimizers.SGD):
    """A subclass of an optimiser, whose own code would not run on the device."""


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: optimizers.Adagrad(0.1), "Adagrad has no counterpart on the device"),
        (lambda: OwnSgd(0.1), "Optimizer OwnSgd has no counterpart"),
        (
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
            "LossScaleOptimizer has no counterpart",
        ),
        (lambda: optimizers.SGD(0.1, clipnorm=1.0), "clipnorm=1.0 of SGD has no"),
        (lambda: optimizers.SGD(0.1, clipvalue=1.0), "clipvalue=1.0 of SGD"),
        (lambda: optimizers.SGD(0.1, use_ema=True), "use_ema=True of SGD"),
        (
            lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
            "gradient_accumulation_steps=2 of SGD",
        ),
        (lambda: optimizers.Adam(0.1, amsgrad=True), "amsgrad=True of Adam"),
        (
            lambda: optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
            "weight_decay=0.1 of SGD",
        ),
        (lambda: optimizers.RMSprop(0.1, weight_decay=0.1), "weight_decay=0.1 of RMSprop"),
        (lambda: optimizers.RMSprop(0.1, global_clipnorm=1.0), "global_clipnorm=1.0 of RMSprop"),
        (
            lambda: optimizers.SGD(0.0, momentum=0.9, nesterov=True),
            "The learning rate is 0, which SGD with nesterov=True",
        ),
    ],
)
def test_optimizer_when_a_pipeline_has_no_counterpart_then_is_refused(optimizer, message) -> None:
    with refuses(f"{message}.* without pipeline stages, in one process, trains with it"):
        fit(pipelined(models.mlp, [0, 0, 1]), optimizer=optimizer(), steps_per_execution=4)


def pipelined(make, stages: list[int]) -> keras.Model:
    models.use_ipus(2)
    model = on_ipus(make)
    model.set_pipeline_stage_assignment(stages)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    return model


def test_constraint_when_in_a_pipeline_then_is_refused() -> None:
    def make():
        last = layers.Dense(3, kernel_constraint="non_neg")
        return keras.Sequential([keras.Input((12,)), layers.ReLU(), last])

    with refuses("Weight 'sequential.*/kernel' has a constraint, which the device does not apply"):
        fit(pipelined(make, [0, 1]), steps_per_execution=4)


def test_learning_rate_when_a_function_then_is_refused() -> None:
    with refuses("The learning rate of Nadam is a function, .* LearningRateSchedule"):
        fit(on_ipus(), optimizer=optimizers.Nadam(lambda: 0.1))


class Counting(layers.Layer):
    """Counts its calls in a variable with a given type, which is trained or not."""

    def __init__(self, dtype: str, *, is_trained: bool = False) -> None:
        super().__init__()
        self.kind, self.is_trained = dtype, is_trained

    def build(self, shape) -> None:
        self.count = self.add_weight(
            shape=(), dtype=self.kind, initializer="zeros", trainable=self.is_trained, name="count"
        )

    def call(self, x):
        self.count.assign(self.count + 1)
        return x + keras.ops.cast(self.count, x.dtype)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: Counting("int32"), "count', which is of type int32, which is not brought back"),
        (lambda: Counting("float32", is_trained=True), "count', which is trained by the optimizer"),
    ],
)
def test_state_when_the_device_cannot_bring_it_back_then_is_refused(layer, message: str) -> None:
    def make():
        return keras.Sequential([keras.Input((12,)), layer(), layers.Dense(3)])

    with refuses(message, poptorch.Error):
        fit(on_ipus(make))


def test_random_numbers_when_the_device_has_none_then_are_refused() -> None:
    class Gamma(layers.Layer):
        def call(self, x):
            return x * keras.random.gamma((12,), 1.0)

    def make():
        return keras.Sequential([keras.Input((12,)), Gamma(), layers.Dense(3)])

    with refuses("gamma, beta and binomial", poptorch.Error):
        fit(on_ipus(make))


@pytest.mark.parametrize("count", [0, -1, True, 1.5, [1, 1]])
def test_number_of_ipus_when_wrong_then_is_refused(count) -> None:
    with refuses("auto_select_ipus must be a positive number of IPUs"):
        ipu.config.IPUConfig().auto_select_ipus = count


def test_number_of_ipus_when_no_replica_fits_then_is_refused() -> None:
    models.use_ipus(1)
    model = on_ipus()
    model.set_pipeline_stage_assignment([0, 0, 1])
    with refuses("auto_select_ipus is 1, but one replica of the model takes 2 IPUs"):
        fit(model, steps_per_execution=4)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("ipu_compiler", "IPUStrategy.run"),
        ("layers", "keras.layers"),
        ("ipu_multi_worker_strategy", "auto_select_ipus"),
    ],
)
def test_what_belongs_to_tensorflow_then_is_refused_with_the_way_out(name, way_out) -> None:
    with refuses(rf"{name}\.compile .*{way_out}", Error):
        getattr(ipu, name).compile()


def test_name_when_unknown_then_those_that_there_are_are_said() -> None:
    with refuses("'loop': it has .*'loops'", AttributeError):
        ipu.loop  # noqa: B018 (It raises.)


def test_strategy_when_there_are_several_processes_then_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with refuses("one of 2 processes"):
        ipu.ipu_strategy.IPUStrategy()


def test_model_when_built_outside_of_the_scope_then_is_keras_own() -> None:
    with models.SCOPE():
        pass
    model = models.mlp()
    assert not hasattr(model, "set_pipelining_options")
    assert fit(model).history["loss"][0] > 0
    assert np.isfinite(model.get_weights()[0]).all()
