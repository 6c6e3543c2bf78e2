"""What `IPUConfig` and the settings of a model mean for an executor, and who keeps the IPUs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu.keras import ipu, run_settings  # noqa: E402
from poptorch_emu.keras.ipu.config import system_settings  # noqa: E402
from poptorch_emu.keras.run_settings import ModelSettings, Placement  # noqa: E402

pytestmark = pytest.mark.feature("Keras: IPUConfig", fidelity="exact")


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    ipu.config.reset_ipu_configuration()


def training_options(**settings) -> poptorch.Options:
    return run_settings.executor_options(
        system_settings(), ModelSettings(**settings), None, 24, replicas=2, is_training=True
    )


def test_configuration_then_is_that_of_the_process_until_reset() -> None:
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.matmuls.poplar_options = {"availableMemoryProportion": "0.3"}
    config.io_tiles.num_io_tiles = 64
    config.floating_point_behaviour.esr = True
    for name in ("inv", "div0", "oflo"):
        setattr(config.floating_point_behaviour, name, True)
    config.norms.use_stable_statistics = True
    ipu.config.configure_ipu_system(config)
    assert system_settings().num_ipus == 2
    options = training_options(accumulation=3)
    assert options.available_memory_proportion == {0: 0.3}
    assert options.TensorLocations.numIOTiles is not None
    backend = options._Popart.options
    assert backend["enableStochasticRounding"] and backend["enableFloatingPointChecks"]
    ipu.config.reset_ipu_configuration()
    assert system_settings() == run_settings.SystemSettings()


def test_steps_then_are_device_iterations_times_accumulation_times_replicas() -> None:
    options = training_options(accumulation=3)
    assert options.device_iterations == 4
    assert options.replication_factor == 2
    assert options.Training.gradient_accumulation == 3
    assert options.Training.accumulation_and_replication_reduction_type is (
        poptorch.ReductionType.Sum
    )


@pytest.mark.parametrize("is_allowed", [False, True])
def test_recomputation_then_is_what_was_allowed(is_allowed: bool) -> None:
    config = ipu.config.IPUConfig()
    config.allow_recompute = is_allowed
    config.configure_ipu_system()
    assert training_options()._Popart.options["autoRecomputation"] == int(is_allowed)


def test_places_then_are_those_that_were_asked_for() -> None:
    placement = Placement(
        offload_weights=True,
        offload_weight_update_variables=True,
        replicated_optimizer_state_sharding=True,
    )
    locations = training_options(placement=placement).TensorLocations.toDict()
    assert locations["location_weight"] == {"onChip": 0}
    assert locations["location_optimizer"] == {"onChip": 0, "useReplicatedTensorSharding": 1}
    assert "location_activation" not in locations and "location_accumulator" not in locations
    placement = Placement(offload_activations=True, offload_gradient_accumulation_buffers=True)
    locations = training_options(placement=placement).TensorLocations.toDict()
    assert set(locations) >= {"location_activation", "location_accumulator"}


def test_model_when_dropped_then_is_collected_and_gives_its_ipus_back() -> None:
    models.use_ipus(1)
    with models.SCOPE():
        model = models.compiled(models.mlp(), keras.optimizers.Adam(1e-3))
    x, labels = models.data()
    model.fit(x, labels, batch_size=8, verbose=0, validation_data=(x, labels))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_validation_then_takes_no_further_ipus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen replicas on sixteen IPUs: training and testing cannot both hold theirs."""
    gc.collect()
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "mk2-pod16")
    models.use_ipus(16)
    with models.SCOPE():
        model = models.compiled(models.mlp())
    x, labels = models.data()
    logs = model.fit(
        x, labels, batch_size=2, epochs=2, verbose=0, validation_data=(x, labels)
    ).history
    assert len(logs["val_loss"]) == 2
