"""Optimisers that the IPU's front end wraps: accumulation, and means over replicas."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402
from support.library_calls import as_library  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.optimizers.wrapped_optimizers import (  # noqa: E402
    WrappedSettings,
    merged,
    settings_of,
)
from poptorch_emu.keras.settings.run_settings import ModelSettings  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: wrapped optimizers", fidelity="exact")

RATE, UPDATES = 0.1, 3
wrap = ipu.optimizers


def sgd(rate: float = RATE) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(rate, momentum=0.5)


# For each case: the wrapper, the number of batches that a replica adds up, and the divisor of the
# sum over all replicas.
WRAPPERS = {
    "sum": (lambda opt: wrap.GradientAccumulationOptimizerV2(opt, 4), 4, lambda replicas: 1),
    "mean": (
        lambda opt: wrap.GradientAccumulationOptimizer(opt, 4, reduction_method="mean"),
        4,
        lambda replicas: 4,
    ),
    "mean over replicas": (wrap.CrossReplicaOptimizer, 1, lambda replicas: replicas),
    "both": (
        lambda opt: wrap.CrossReplicaGradientAccumulationOptimizerV2(opt, 2),
        2,
        lambda replicas: replicas,
    ),
    "both means": (
        lambda opt: wrap.CrossReplicaGradientAccumulationOptimizerV2(
            opt, 2, reduction_method="MEAN"
        ),
        2,
        lambda replicas: 2 * replicas,
    ),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", WRAPPERS)
def test_loop_with_a_wrapper_then_trains_by_its_definition(name: str, replicas: int) -> None:
    wrapper, accumulation, divisor = WRAPPERS[name]
    strategy = programs.strategy(replicas)
    with strategy.scope():
        model, optimizer = models.mlp(), wrapper(sgd())
        queue, iterator = ipu.ipu_outfeed_queue.IPUOutfeedQueue(), iter(programs.dataset())
        train = programs.step(model, optimizer)

        def loop():
            for _ in range(UPDATES * accumulation):
                queue.enqueue(train(*next(iterator)))

        strategy.run(loop)
    together = replicas * accumulation
    batches = programs.batches_of(UPDATES * together)
    loss = models.cross_entropy()
    eager = models.mlp()
    wanted = programs.eager_losses(
        eager,
        sgd(),
        [batches[n : n + together] for n in range(0, len(batches), together)],
        as_library(lambda labels, scores: loss(labels, scores) / divisor(replicas)),
    )
    found = queue.dequeue().numpy().reshape(-1) / divisor(replicas)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert models.largest_difference(eager, model) < 5e-6
    assert int(optimizer.iterations) == UPDATES


def test_fit_with_a_wrapper_then_trains_as_with_the_option_of_the_model() -> None:
    models.use_ipus(2)
    x, labels = models.data()
    trained = []
    for is_wrapped in (True, False):
        with models.SCOPE():
            model, optimizer = models.mlp(), sgd()
            if is_wrapped:
                optimizer = wrap.GradientAccumulationOptimizerV2(
                    optimizer, 2, reduction_method="mean"
                )
            else:
                model.set_gradient_accumulation_options(2, "mean")
            model.compile(optimizer, models.cross_entropy(), steps_per_execution=2)
            model.fit(x, labels, batch_size=4, shuffle=False, verbose=0)
        trained.append(model)
    assert models.largest_difference(*trained) == 0


def everything(optimizer):
    return wrap.CrossReplicaGradientAccumulationOptimizerV2(optimizer, 2, True, True, None, "mean")


def fixed_scale(optimizer):
    return keras.mixed_precision.LossScaleOptimizer(optimizer, False, 64)


@pytest.mark.parametrize("wrapper", [everything, fixed_scale], ids=lambda each: each.__name__)
def test_optimizer_when_copied_or_saved_then_what_was_asked_of_it_is_kept(
    wrapper, tmp_path
) -> None:
    optimizer = wrapper(keras.optimizers.Adam(RATE))
    wanted = settings_of(optimizer)
    assert wanted != WrappedSettings()
    model = models.mlp()
    model.compile(optimizer, models.cross_entropy())
    model.fit(*models.data(), verbose=0)
    loaded = []
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        loaded.append(keras.models.load_model(tmp_path / name).optimizer)
    for other in (
        type(optimizer).from_config(optimizer.get_config()),
        keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)),
        *loaded,
    ):
        assert settings_of(other) == wanted
        assert other.loss_scale_factor == optimizer.loss_scale_factor
    assert "ipu_settings" not in sgd().get_config()


def test_settings_in_a_file_when_changed_then_are_refused() -> None:
    config = everything(sgd()).get_config()
    for changed, error in [
        ({"accumulation": 0}, ValueError),
        ({"reduction": "x"}, ValueError),
        ({"placement": {"offload": True}}, TypeError),
        ({"x": 1}, TypeError),
    ]:
        wrong = {**config, "ipu_settings": {**config["ipu_settings"], **changed}}
        with pytest.raises(error):
            keras.optimizers.SGD.from_config(wrong)


def test_wrapper_when_it_accumulates_one_batch_then_its_other_settings_hold() -> None:
    optimizer = wrap.GradientAccumulationOptimizerV2(sgd(), 1, True, reduction_method="mean")
    found = merged(ModelSettings(), optimizer)
    assert found.placement.offload_weight_update_variables
    assert found.reduction.name == "MEAN" and found.accumulation == 1
    with pytest.raises(ValueError, match="accumulates 4 batches .* optimizer 1"):
        merged(ModelSettings(accumulation=4), optimizer)
    assert merged(
        ModelSettings(accumulation=4), wrap.CrossReplicaOptimizer(sgd())
    ) == ModelSettings(accumulation=4)


def test_wrapper_when_it_cannot_be_then_is_refused() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        model, iterator = models.mlp(), iter(programs.dataset())
        train = programs.step(model, wrap.GradientAccumulationOptimizerV2(sgd(), 4))

        def loop():
            for _ in range(6):
                train(*next(iterator))

        with pytest.raises(ValueError, match="makes 6 iterations, but an update .* takes 4"):
            strategy.run(loop)
        model.compile(wrap.GradientAccumulationOptimizerV2(sgd(), 4), models.cross_entropy())
        model.set_gradient_accumulation_options(2)
        x, labels = models.data()
        with pytest.raises(ValueError, match="accumulates 2 batches .* optimizer 4"):
            model.fit(x, labels, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="must be a positive integer, not 0"):
        wrap.GradientAccumulationOptimizerV2(sgd(), 0)
    with pytest.raises(ValueError, match="reduction_method must be one of"):
        wrap.GradientAccumulationOptimizerV2(sgd(), 2, reduction_method="average")
    for refused in (wrap.MapGradientOptimizer, wrap.ShardedOptimizer):
        with pytest.raises(Error, match="is not offered"):
            refused(sgd())
    optimizer = sgd()
    assert wrap.ALSOptimizer(optimizer) is optimizer
