"""Setters of `Options`: stored values and refusals."""

import pytest
import torch

from poptorch_emu import enums
from poptorch_emu.options import (
    Options,
    OptionsDict,
    PipelinedExecution,
    ShardedExecution,
    TensorLocationSettings,
)

pytestmark = pytest.mark.feature("Options", fidelity="exact")

# Compared with the reference in conformance/test_documented_defaults.py.
DEFAULTS = dict(Options()._values)


def test_two_options_then_share_no_mutable_default():
    Options().anchorTensor("a", "tensor")
    assert Options().anchored_tensors == {}


@pytest.mark.parametrize(
    ("method", "arguments", "stored"),
    [
        ("deviceIterations", (4,), {"device_iterations": 4}),
        ("replicationFactor", (2,), {"replication_factor": 2}),
        ("broadcastBuffers", (False,), {"broadcast_buffers": False}),
        ("autoRoundNumIPUs", (), {"auto_round_num_ipus": True}),
        ("randomSeed", (42,), {"random_seed": 42}),
        ("logDir", ("/tmp",), {"log_dir": "/tmp"}),
        ("maxRepeatLogs", (9,), {"max_repeat_logs": 9}),
        ("maxRepeatLogs", (None,), {"max_repeat_logs": 2**64 - 1}),
        ("modelName", ("bert",), {"model_name": "bert"}),
        ("connectionType", (enums.ConnectionType.OnDemand,), {"connection_type": 1}),
        ("syncPattern", (enums.SyncPattern.ReplicaAndLadder,), {"sync_pattern": 2}),
        ("useIpuModel", (True,), {"use_model": True}),
        ("useIpuId", (3,), {"ipu_id": 3}),
        ("useOfflineIpuTarget", (), {"connection_type": 2, "ipu_version": 2}),
        ("useOfflineIpuTarget", (21,), {"connection_type": 2, "ipu_version": 21}),
        ("outputMode", (enums.OutputMode.Sum,), {"output_mode": 3, "output_return_period": 1}),
        (
            "outputMode",
            (enums.OutputMode.EveryN, 5),
            {"output_mode": 1, "output_return_period": 5},
        ),
    ],
)
def test_setter_then_stores_exactly_that_and_chains(method, arguments, stored):
    options = Options()
    assert getattr(options, method)(*arguments) is options
    assert options._values == {**DEFAULTS, **stored}
    for name, value in stored.items():
        assert type(options(name)) is type(value)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("deviceIterations", (1.0,)),
        ("replicationFactor", ("2",)),
        ("broadcastBuffers", (1,)),
        ("autoRoundNumIPUs", (None,)),
        ("randomSeed", (1.5,)),
        ("logDir", (3,)),
        ("maxRepeatLogs", ("4",)),
        ("connectionType", (1,)),
        ("syncPattern", (0,)),
        ("useIpuId", ("3",)),
        ("outputMode", (2,)),
        ("setExecutionStrategy", ("sharded",)),
        ("setAvailableMemoryProportion", ([0.5],)),
    ],
)
def test_setter_when_type_is_wrong_then_asserts(method, arguments):
    with pytest.raises(AssertionError):
        getattr(Options(), method)(*arguments)


def test_random_seed_then_seeds_pytorch_at_once():
    Options().randomSeed(7)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))


@pytest.mark.parametrize("period", [None, 0, -2, 1.5])
def test_output_mode_every_n_without_period_then_asserts(period):
    with pytest.raises(
        AssertionError,
        match="EveryN anchor must have output_return_period set to valid positive integer",
    ):
        Options().outputMode(enums.OutputMode.EveryN, period)


def test_output_mode_with_useless_period_then_tells_and_stores_it(caplog):
    caplog.set_level("INFO", logger="poptorch::python")
    options = Options().outputMode(enums.OutputMode.All, 3)
    assert "Anchor return period argument ignored with output_mode set to" in caplog.text
    assert (options.output_mode, options.output_return_period) == (2, 3)


def test_default_output_mode_then_true_until_one_is_picked():
    options = Options()
    assert options.defaultOutputMode() is True
    assert options.outputMode(enums.OutputMode.Final).defaultOutputMode() is False


@pytest.mark.parametrize(
    ("size", "group_type", "stored"),
    [
        (2, enums.CommGroupType.Consecutive, (2, enums.CommGroupType.Consecutive)),
        (4, enums.CommGroupType.Orthogonal, (4, enums.CommGroupType.Orthogonal)),
        (3, enums.CommGroupType.NoGrouping, (1, enums.CommGroupType.Consecutive)),
    ],
    ids=["consecutive", "orthogonal", "none"],
)
def test_input_replica_grouping_then_stores_size_and_type(size, group_type, stored):
    options = Options().replicationFactor(4).inputReplicaGrouping(size, group_type)
    assert (options.input_group_size, options.input_cgt) == stored


@pytest.mark.parametrize(
    ("size", "group_type", "message"),
    [
        (4, enums.CommGroupType.All, "input_group_type cannot be All"),
        (
            5,
            enums.CommGroupType.Consecutive,
            "input_group_size cannot be larger than replication_factor",
        ),
        (
            3,
            enums.CommGroupType.Consecutive,
            "input_group_size must be a factor of replication_factor",
        ),
        (
            0,
            enums.CommGroupType.Orthogonal,
            "input_group_size must be a factor of replication_factor",
        ),
    ],
    ids=["all", "too-large", "no-factor", "zero"],
)
def test_input_replica_grouping_when_impossible_then_refuses(size, group_type, message):
    with pytest.raises(ValueError, match=message):
        Options().replicationFactor(4).inputReplicaGrouping(size, group_type)


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ({}, ["layer/out", True, None, 1]),
        ({"output_return_period": 4}, ["layer/out", True, None, 1]),
        (
            {"output_mode": enums.OutputMode.Sum, "output_return_period": 4},
            ["layer/out", False, enums.OutputMode.Sum, 1],
        ),
        (
            {"output_mode": enums.OutputMode.EveryN, "output_return_period": 4},
            ["layer/out", False, enums.OutputMode.EveryN, 4],
        ),
    ],
    ids=["default", "default-period", "sum-period", "every-n"],
)
def test_anchor_tensor_then_period_counts_for_every_n_only(arguments, stored):
    options = Options()
    assert options.anchorTensor("out", "layer/out", **arguments) is None
    assert options.anchored_tensors == {"out": stored}


def test_available_memory_proportion_then_keys_become_numbers():
    options = Options()
    assert options.setAvailableMemoryProportion({"IPU0": 0.1, "IPU12": 1}) is None
    assert options.available_memory_proportion == {0: 0.1, 12: 1}


@pytest.mark.parametrize("wrong", [{"0": 0.5}, {0: 0.5}, 0.5], ids=["name", "int", "float"])
def test_available_memory_proportion_when_malformed_then_shows_the_form(wrong):
    with pytest.raises(
        AssertionError, match="Available memory proportions are expected to be in a dictionary of"
    ):
        Options().setAvailableMemoryProportion(wrong)


@pytest.mark.parametrize(
    ("method", "arguments", "stored"),
    [
        ("enableStableNorm", (True,), {"enableStableNorm": True}),
        ("enableSyntheticData", (True,), {"syntheticDataMode": 2}),
        ("enableSyntheticData", (False,), {"syntheticDataMode": 0}),
        ("logCycleCount", (True,), {"instrumentWithHardwareCycleCounter": True}),
        ("updatableNamedBuffers", (["mean"],), {"updatableNamedBuffers": ["mean"]}),
        ("enableExecutableCaching", (None,), {"enableEngineCaching": False}),
        (
            "enableExecutableCaching",
            ("/cache",),
            {"cachePath": "/cache", "enableEngineCaching": True},
        ),
    ],
)
def test_setter_of_a_backend_option_then_stores_it_there(method, arguments, stored):
    options = Options()
    assert getattr(options, method)(*arguments) is options
    assert options._Popart.options == {**Options()._Popart.options, **stored}
    assert options._values == DEFAULTS


def test_set_execution_strategy_then_replaces_the_pipelined_default():
    options = Options()
    assert type(options._execution_strategy) is PipelinedExecution
    strategy = ShardedExecution("a")
    assert options.setExecutionStrategy(strategy) is options
    assert options._execution_strategy is strategy


@pytest.mark.parametrize("name", ["training", "popart_options", "IPUContext"])
def test_names_that_never_were_then_invalid(name):
    with pytest.raises(AttributeError, match=f"Invalid attribute {name}\\."):
        getattr(Options(), name)


PARTS = ["Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart"]


@pytest.mark.parametrize("name", PARTS[:-1])
def test_group_of_options_then_cannot_be_assigned(name):
    with pytest.raises(AssertionError, match=f"Invalid option {name}, valid options are"):
        setattr(Options(), name, OptionsDict())


@pytest.mark.parametrize(
    "write",
    [
        lambda o: o.deviceIterations(2),
        lambda o: setattr(o, "device_iterations", 2),
        lambda o: o.setExecutionStrategy(ShardedExecution()),
        lambda o: o.relaxOptimizerAttributesChecks(),
        lambda o: o.showCompilationProgressBar(False),
        lambda o: o.sourceLocationExcludes([]),
        lambda o: o.appendToLocationExcludes("x"),
        lambda o: o.disableModuleNamescope(),
        lambda o: o.useIpuModel(True),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Precision.enableFloatingPointExceptions(True),
        lambda o: o.Distributed.disable(),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: o.TensorLocations.setWeightLocation(TensorLocationSettings()),
        lambda o: o._Popart.set("enableOutlining", True),
        lambda o: o._Popart.setPatterns({}),
        lambda o: setattr(o._Popart, "options", {}),
    ],
)
def test_frozen_options_then_every_write_is_refused_until_unfrozen(write):
    options = Options()
    before = repr(options)
    options._freeze()
    options._freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        write(options)
    assert repr(options) == before
    write(options.clone())
    options._unfreeze()
    write(options)


def test_clone_then_groups_are_its_own():
    options = Options()
    clone = options.clone()
    clone.Precision.enableStochasticRounding(True)
    clone.Training.gradientAccumulation(8)
    assert clone._Popart.options["enableStochasticRounding"] is True
    assert "enableStochasticRounding" not in options._Popart.options
    assert options.Training.gradient_accumulation == 1


def test_repr_then_values_come_before_groups():
    text = repr(Options().modelName("bert"))
    assert text.startswith("Options(replication_factor=1, input_group_size=1, input_cgt=")
    places = [text.index(f", {name}=") for name in ["model_name", *PARTS]]
    assert places == sorted(places)
    assert "_Popart=_PopartOptions(instrumentWithHardwareCycleCounter=False, " in text


@pytest.mark.parametrize(
    ("variable", "value", "changed"),
    [
        ("POPTORCH_CACHE_DIR", "/cache", lambda o: o._Popart.options["cachePath"] == "/cache"),
        ("POPTORCH_CACHE_DIR", "", lambda o: "cachePath" not in o._Popart.options),
        ("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 6}', lambda o: o.device_iterations == 6),
    ],
    ids=["cache", "no-cache", "json"],
)
def test_environment_then_changes_new_options(variable, value, changed, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert changed(Options())


def test_environment_cache_then_is_told(monkeypatch, caplog):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/cache")
    caplog.set_level("INFO", logger="poptorch::python")
    Options()
    assert "POPTORCH_CACHE_DIR is set: setting cache path to /cache" in caplog.text


def test_to_dict_when_no_output_mode_then_asserts():
    with pytest.raises(AssertionError, match="An output mode must be picked before serialisation"):
        Options().toDict()


def test_to_dict_then_parts_come_in_order():
    flat = Options().outputMode(enums.OutputMode.All).toDict()
    assert list(flat) == [
        "execution_mode",
        "instrumentWithHardwareCycleCounter",
        "rearrangeAnchorsOnHost",
        *DEFAULTS,
        "gradient_accumulation",
        "accumulation_and_replication_reduction_type",
        "meanAccumulationAndReplicationReductionStrategy",
        "num_distributed_processes",
        "distributed_process_id",
        "ipuof_configs",
        "compilation_progress_bar_fn",
    ]


def test_to_dict_when_an_option_is_in_two_parts_then_asserts():
    options = Options().outputMode(enums.OutputMode.All)
    options._Popart.set("numIOTiles", 32)
    options.TensorLocations.numIOTiles(32)
    with pytest.raises(
        AssertionError, match="Can't merge dictionaries, they have some keys in common: numIOTiles"
    ):
        options.toDict()
