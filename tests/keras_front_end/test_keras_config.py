"""Effects of `IPUConfig` and of a model's settings on an executor, and the holders of IPUs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.ipu.config import system_settings  # noqa: E402
from poptorch_emu.keras.settings import run_settings  # noqa: E402
from poptorch_emu.keras.settings.run_settings import ModelSettings, Placement  # noqa: E402

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


def changed(**values):
    config = ipu.config.IPUConfig()
    config.from_dict({name.replace("__", "."): value for name, value in values.items()})
    return config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("selection_order", ipu.config.SelectionOrder.SNAKE),
        ("scheduling.algorithm", ipu.config.SchedulingAlgorithm.LOOK_AHEAD),
        ("device_connection.type", ipu.config.DeviceConnectionType.ON_DEMAND),
        ("device_connection.enable_remote_buffers", True),
        ("optimizations.math.fast", True),
        ("optimizations.maximum_cross_replica_sum_buffer_size", 10),
        ("optimizations.merge_remote_buffers", ipu.config.MergeRemoteBuffersBehaviour.MERGE),
        ("io_tiles.available_memory_proportion", 1),
        ("matmuls.poplar_options", {"partialsType": "half"}),
        ("experimental.multi_replica_distribution.process_index", 1),
    ],
)
def test_setting_then_is_kept_and_without_effect(name: str, value) -> None:
    config = ipu.config.IPUConfig()
    default = config.get_attribute_metadata(name).default
    assert config.to_dict()[name] == default != value
    config.from_dict({name: value})
    assert config.to_dict()[name] == value
    config.configure_ipu_system()
    assert system_settings() == run_settings.SystemSettings()
    assert ipu.config.get_ipu_config() is config
    assert ipu.config.IPUConfig().to_dict()[name] == default


@pytest.mark.parametrize(
    ("selected", "num_ipus"), [(3, 1), ([63], 1), ((64,), 2), ([126], 64), ([], None), (None, None)]
)
def test_device_when_selected_then_its_ipus_are_those_of_all_replicas(selected, num_ipus) -> None:
    """A system of 64 IPUs has 64 devices of one IPU, then 32 of two, and last one of all."""
    changed(select_ipus=selected).configure_ipu_system()
    assert system_settings().num_ipus == num_ipus


@pytest.mark.parametrize("value", [4, [4], (4,)])
def test_number_of_ipus_then_may_stand_in_a_list(value) -> None:
    changed(auto_select_ipus=value).configure_ipu_system()
    assert system_settings().num_ipus == 4


def test_floating_point_behaviour_then_one_exception_or_all_turn_them_on() -> None:
    rounding = ipu.config.StochasticRoundingBehaviour
    for values, checks, rounds in [
        ({"inv": True}, True, False),
        ({"esr": rounding.ON}, False, True),
        ({"esr": rounding.from_bool(False)}, False, False),
        ({"esr": True}, False, True),
        ({"set_all": True}, True, True),
        ({"nanoo": True}, False, False),
    ]:
        behaviour = {f"floating_point_behaviour__{name}": value for name, value in values.items()}
        changed(**behaviour).configure_ipu_system()
        assert system_settings().checks_floating_point is checks
        assert system_settings().uses_stochastic_rounding is rounds


def test_proportions_when_of_several_sections_then_the_least_counts() -> None:
    changed(
        matmuls__poplar_options={"availableMemoryProportion": "0.3", "partialsType": "half"},
        convolutions__poplar_options={"availableMemoryProportion": 0.4},
    ).configure_ipu_system()
    assert system_settings().available_memory_proportion == 0.3


def test_configuration_when_there_is_none_then_asking_for_it_says_so() -> None:
    ipu.config.reset_ipu_configuration()
    with pytest.raises(RuntimeError, match="No IPU devices configured"):
        ipu.config.get_ipu_config()


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("auto_select_ipu", 1, ValueError, "no attribute 'auto_select_ipu'. Did you mean 'auto_"),
        (
            "io_tiles.num",
            32,
            ValueError,
            "IPUConfig.io_tiles has no attribute 'num'. It has num_io_",
        ),
        ("matmuls", {}, ValueError, "IPUConfig.matmuls is a group of settings"),
        ("matmuls.poplar_options.x", 1, ValueError, "no attribute 'matmuls.poplar_options.x'"),
        ("allow_recompute", 1, TypeError, "IPUConfig.allow_recompute must be bool, not 1"),
        ("io_tiles.num_io_tiles", True, TypeError, "num_io_tiles must be int, not True"),
        ("selection_order", "SNAKE", TypeError, "must be SelectionOrder.AUTO, SelectionOrder.ZIG"),
    ],
)
def test_setting_when_wrong_then_is_refused(name: str, value, kind, message: str) -> None:
    with pytest.raises(kind, match=message):
        ipu.config.IPUConfig().from_dict({name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"auto_select_ipus": 1024}, "1024, but the system 'mk2-pod64' has 64 IPUs"),
        ({"auto_select_ipus": [65]}, "65, but the system 'mk2-pod64' has 64 IPUs"),
        ({"io_tiles__available_memory_proportion": 1.5}, "is 1.5, .* at most 1"),
        ({"matmuls__poplar_options": {"availableMemoryProportion": True}}, "is True, "),
        ({"matmuls__poplar_options": {"availableMemoryProportion": "x"}}, "is 'x', "),
        (
            {"matmuls__poplar_options": {"availableMemoryPropotion": 0.3}},
            "no 'availableMemoryPropotion'. Did you mean 'availableMemoryProportion'",
        ),
        ({"select_ipus": [1], "auto_select_ipus": 1}, "are both set"),
        ({"select_ipus": [1, 2]}, "one process has one device"),
        ({"select_ipus": 127}, "is 127, but the system 'mk2-pod64' has 127 devices"),
        ({"select_ipus": [-1]}, "is .-1., but the system"),
        ({"select_ipus": ["0"]}, "is .'0'., but the system"),
        (
            {"device_connection__type": ipu.config.DeviceConnectionType.NEVER},
            "is NEVER, which needs a version: 'ipu1' or 'ipu2', not ''",
        ),
        ({"io_tiles__place_ops_on_io_tiles": True}, "set num_io_tiles, too"),
        ({"norms__experimental__distributed_batch_norm_replica_group_size": 2}, "Leave it at 1"),
        (
            {"experimental__multi_replica_distribution__process_count": 2},
            "says that this is process 0 of 2, but it is 0 of 1",
        ),
    ],
)
def test_settings_when_they_contradict_then_are_refused(values, message: str) -> None:
    before = system_settings()
    with pytest.raises(ValueError, match=message):
        changed(**values).configure_ipu_system()
    assert system_settings() is before


def test_process_when_it_never_connects_then_runs_nothing() -> None:
    never = {"type": ipu.config.DeviceConnectionType.NEVER, "version": "ipu2"}
    changed(
        **{f"device_connection__{name}": each for name, each in never.items()}
    ).configure_ipu_system()
    with models.SCOPE():
        model = models.compiled(models.mlp())
    x, labels = models.data()
    with pytest.raises(poptorch.Error, match="this process never runs a program"):
        model.fit(x, labels, verbose=0)


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
    """Sixteen replicas use all sixteen IPUs, so training and testing cannot both hold IPUs."""
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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "matmuls.poplar_options",
            {"availableMemoryProportion": "1.5"},
            "is .1.5., but is a part",
        ),
        ("convolutions.poplar_options", {"availableMemoryProportion": 0}, "is 0, but is a part of"),
        ("io_tiles.num_io_tiles", 5000, "is 5000, but an IPU has 1472 tiles"),
        ("io_tiles.num_io_tiles", -1, "is -1, but an IPU has"),
    ],
)
def test_number_when_out_of_its_range_then_is_refused(name: str, value, message: str) -> None:
    config = ipu.config.IPUConfig()
    config.from_dict({name: value})
    with pytest.raises(ValueError, match=message):
        config.configure_ipu_system()
