"""From options to the immutable configuration of a compilation."""

import pytest

from poptorch_emu.config import (
    AnchorConfig,
    CompileConfig,
    ShardingConfig,
    StrategyConfig,
    StrategyKind,
)
from poptorch_emu.enums import (
    AutoStage,
    CommGroupType,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from poptorch_emu.errors import Error
from poptorch_emu.options import Options, ShardedExecution, TensorLocationSettings
from poptorch_emu.options.freeze import freeze


def ready(mode=OutputMode.All):
    return Options().outputMode(mode)


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
def test_freeze_when_nothing_is_set_then_config_has_its_defaults(is_training):
    assert freeze(ready(), is_training=is_training) == CompileConfig(is_training=is_training)


@pytest.mark.parametrize(
    ("set_option", "expected"),
    [
        (lambda o: o.deviceIterations(4), {"device_iterations": 4}),
        (lambda o: o.Training.gradientAccumulation(8), {"gradient_accumulation": 8}),
        (lambda o: o.replicationFactor(2), {"replication_factor": 2}),
        (
            lambda o: o.replicationFactor(4).inputReplicaGrouping(2, CommGroupType.Orthogonal),
            {
                "replication_factor": 4,
                "input_group_size": 2,
                "input_group_type": CommGroupType.Orthogonal,
            },
        ),
        (
            lambda o: o.outputMode(OutputMode.EveryN, 3),
            {"output_mode": OutputMode.EveryN, "output_return_period": 3},
        ),
        (
            lambda o: o.Training.accumulationAndReplicationReductionType(ReductionType.Sum),
            {"reduction_type": ReductionType.Sum},
        ),
        (
            lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(
                MeanReductionStrategy.Running
            ),
            {"is_running_mean": True},
        ),
        (lambda o: o.broadcastBuffers(False), {"broadcast_buffers": False}),
        (lambda o: o.autoRoundNumIPUs(), {"auto_round_num_ipus": True}),
        (lambda o: o.randomSeed(42), {"random_seed": 42}),
        (
            lambda o: o.setExecutionStrategy(ShardedExecution(AutoStage.AutoIncrement)),
            {
                "strategy": StrategyConfig(
                    kind=StrategyKind.SHARDED, auto_stage=AutoStage.AutoIncrement
                )
            },
        ),
        (
            lambda o: o.anchorTensor("a", "out", OutputMode.EveryN, 5),
            {"anchors": (AnchorConfig("a", "out", OutputMode.EveryN, 5),)},
        ),
        (
            lambda o: o.outputMode(OutputMode.EveryN, 2).anchorTensor("a", "out"),
            {
                "output_mode": OutputMode.EveryN,
                "output_return_period": 2,
                "anchors": (AnchorConfig("a", "out", OutputMode.EveryN, 2),),
            },
        ),
        (
            lambda o: o.Distributed.configureProcessId(1, 4),
            {"num_processes": 4, "process_id": 1},
        ),
        (
            lambda o: o.Precision.enableFloatingPointExceptions(True),
            {"checks_floating_point": True},
        ),
        (lambda o: o.enableExecutableCaching("/cache"), {"cache_dir": "/cache"}),
        (lambda o: o.enableExecutableCaching("/cache").enableExecutableCaching(None), {}),
        (lambda o: o.enableProfiling("/profile"), {"profile_dir": "/profile"}),
        (lambda o: o._Popart.setEngineOptions({"autoReport.directory": "/profile"}), {}),
        (lambda o: o.modelName("bert"), {"model_name": "bert"}),
        (lambda o: o.showCompilationProgressBar(False), {"shows_progress_bar": False}),
        (lambda o: o.disableModuleNamescope(), {"names_modules": False}),
        (lambda o: o.syncPattern(SyncPattern.SinglePipeline), {}),
    ],
)
def test_freeze_then_option_changes_its_fields_only(set_option, expected):
    options = ready()
    set_option(options)
    assert freeze(options, is_training=True) == CompileConfig(is_training=True, **expected)


def test_freeze_then_enums_are_members_again():
    config = freeze(ready(OutputMode.Sum), is_training=True)
    assert config.output_mode is OutputMode.Sum


def test_freeze_frozen_options_then_works():
    options = ready()
    options._freeze()
    assert freeze(options, is_training=True) == CompileConfig(is_training=True)


def test_freeze_when_output_mode_is_default_then_asserts():
    with pytest.raises(AssertionError, match="An output mode must be picked"):
        freeze(Options(), is_training=True)


def test_freeze_when_backend_option_is_unknown_then_refuses():
    options = ready()
    options._Popart.set("noSuchOption", 1)
    with pytest.raises(Error, match="Unknown uint64 option noSuchOption"):
        freeze(options, is_training=True)


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize(
    ("set_option", "name"),
    [
        (lambda o, n: o.deviceIterations(n), "deviceIterations"),
        (lambda o, n: o.replicationFactor(n), "replicationFactor"),
        (lambda o, n: o.Training.gradientAccumulation(n), "Training.gradientAccumulation"),
        (lambda o, n: o.Distributed.configureProcessId(0, n), "Distributed.configureProcessId"),
    ],
    ids=["iterations", "replicas", "accumulation", "processes"],
)
def test_count_below_one_then_its_setter_names_option_and_value(set_option, name, count):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not {count}"):
        set_option(ready(), count)


def test_freeze_when_replicas_changed_after_grouping_then_refuses():
    options = ready().replicationFactor(4).inputReplicaGrouping(4, CommGroupType.Consecutive)
    options.replicationFactor(2)
    with pytest.raises(ValueError, match=r"input_group_size \(4\) must be a factor of"):
        freeze(options, is_training=True)


def _sharded(min_elements=None):
    settings = TensorLocationSettings().useReplicatedTensorSharding(True)
    if min_elements is not None:
        settings.minElementsForReplicatedTensorSharding(min_elements)
    return settings


def test_freeze_when_tensors_are_sharded_then_config_has_the_threshold_of_each_kind():
    options = ready()
    options.TensorLocations.setOptimizerLocation(_sharded(100))
    options.TensorLocations.setAccumulatorLocation(_sharded())
    options.TensorLocations.setWeightLocation(
        TensorLocationSettings().minElementsForReplicatedTensorSharding(5)
    )
    config = freeze(options, is_training=True)
    assert config.sharding == ShardingConfig(None, 100, 8192, None)


def test_freeze_when_activations_are_sharded_then_config_has_their_threshold():
    options = ready()
    options.TensorLocations.setActivationLocation(_sharded(7))
    assert freeze(options, is_training=True).sharding == ShardingConfig(activation=7)


def test_freeze_when_nothing_is_sharded_then_nothing_is_asked_for():
    assert freeze(ready(), is_training=True).sharding == ShardingConfig()
