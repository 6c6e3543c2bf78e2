"""`Precision`, `Training`, `Jit`, `Distributed`, `TensorLocations`."""

import pytest
import torch

from poptorch_emu.enums import MeanReductionStrategy, ReductionType
from poptorch_emu.options import Options, TensorLocationSettings

pytestmark = pytest.mark.feature(
    "Options.Training, Precision, Distributed, TensorLocations, Jit", fidelity="exact"
)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float, "float"),
        (torch.float32, "float"),
        (torch.half, "half"),
        (torch.float16, "half"),
    ],
)
def test_set_partials_type_then_matmul_and_convolution_follow(dtype, name):
    options = Options()
    assert options.Precision.setPartialsType(dtype) is options.Precision
    assert options._Popart.options["partialsTypeMatMuls"] == name
    assert options._Popart.options["convolutionOptions"] == {"partialsType": name}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, "half"])
def test_set_partials_type_when_unknown_then_refuses_in_poptorchs_words(dtype):
    message = "parameter to setPartialsType should be eithertorch.float or torch.half"
    with pytest.raises(ValueError, match=message):
        Options().Precision.setPartialsType(dtype)


def test_partials_and_dithering_then_the_later_one_wins():
    options = Options()
    options.Precision.setPartialsType(torch.half)
    options.Training.setConvolutionDithering(True)
    assert options._Popart.options["convolutionOptions"] == {"enableConvDithering": True}
    assert options._Popart.options["partialsTypeMatMuls"] == "half"
    options.Precision.setPartialsType(torch.half)
    assert options._Popart.options["convolutionOptions"] == {"partialsType": "half"}


def test_floating_point_exceptions_then_need_a_bool():
    options = Options()
    options.Precision.enableFloatingPointExceptions(True)
    assert options._Popart.options["enableFloatingPointChecks"] is True
    with pytest.raises(
        AssertionError, match="enableFloatingPointExceptions needs to be set to a bool"
    ):
        options.Precision.enableFloatingPointExceptions(1)


@pytest.mark.parametrize("method", ["halfFloatCasting", "runningStatisticsAlwaysFloat"])
def test_deprecated_precision_then_warns_on_every_call_and_does_nothing(method, caplog):
    options = Options()
    before = repr(options)
    for _ in range(2):
        assert getattr(options.Precision, method)(True) is options.Precision
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 2
    assert warnings[0].startswith(f"[Deprecated] Do not call options.Precision.{method}()")
    assert repr(options) == before


def test_running_statistics_when_not_a_bool_then_refuses():
    with pytest.raises(ValueError, match="runningStatisticsAlwaysFloat needs to be set to a bool"):
        Options().Precision.runningStatisticsAlwaysFloat(1)


def test_training_then_has_the_documented_defaults():
    assert Options().Training.toDict() == {
        "gradient_accumulation": 1,
        "accumulation_and_replication_reduction_type": ReductionType.Mean,
        "meanAccumulationAndReplicationReductionStrategy": MeanReductionStrategy.Post,
    }


def test_training_setters_then_store_and_chain():
    training = Options().Training
    assert training.gradientAccumulation(8) is training
    assert training.accumulationAndReplicationReductionType(ReductionType.Sum) is training
    strategy = MeanReductionStrategy.Running
    assert training.setMeanAccumulationAndReplicationReductionStrategy(strategy) is training
    assert list(training.toDict().values()) == [8, ReductionType.Sum, strategy]


@pytest.mark.parametrize("wrong", [ReductionType.NoReduction, "mean"])
def test_reduction_type_when_neither_mean_nor_sum_then_refuses(wrong):
    with pytest.raises(
        ValueError,
        match="accumulationAndReplicationReductionType must be set to "
        "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum",
    ):
        Options().Training.accumulationAndReplicationReductionType(wrong)


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.gradientAccumulation(2.0),
        lambda t: t.setMeanAccumulationAndReplicationReductionStrategy(1),
    ],
    ids=["accumulation", "strategy"],
)
def test_training_setter_when_type_is_wrong_then_asserts(write):
    with pytest.raises(AssertionError, match="Unexpected type"):
        write(Options().Training)


def test_automatic_loss_scaling_then_set_in_the_backend():
    options = Options()
    options.Training.setAutomaticLossScaling(True)
    assert options._Popart.options["automaticLossScalingSettings.enabled"] is True


def test_trace_model_then_false_warns_and_true_is_refused(caplog):
    jit = Options().Jit
    assert jit.traceModel(False) is jit
    with pytest.raises(
        ValueError, match=r"options\.Jit\.traceModel\(True\) is no longer supported"
    ):
        jit.traceModel(True)
    assert caplog.text.count("[Deprecated] Do not call options.Jit.traceModel()") == 2


@pytest.fixture
def no_mpi(monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)


def test_distributed_without_mpi_then_one_process(no_mpi):
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (0, 1)
    assert distributed.ipuof_configs == {}


def test_distributed_under_mpi_then_follows_it_until_disabled(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (3, 4)
    assert distributed.disable() is distributed
    assert (distributed.processId, distributed.numProcesses) == (0, 1)


def test_distributed_set_env_var_names_then_reads_them_in_their_order(no_mpi, monkeypatch):
    monkeypatch.setenv("MY_COUNT", "8")
    monkeypatch.setenv("MY_RANK", "5")
    distributed = Options().Distributed.setEnvVarNames("MY_COUNT", "MY_RANK")
    assert (distributed.processId, distributed.numProcesses) == (5, 8)
    assert distributed.distributed_process_id == 5
    assert distributed.num_distributed_processes == 8


@pytest.mark.parametrize("tiles", [32, 64, 192])
def test_num_io_tiles_when_legal_then_stored(tiles):
    assert Options().TensorLocations.numIOTiles(tiles).toDict() == {"numIOTiles": tiles}


@pytest.mark.parametrize("tiles", [30, 31, 33, 191, 193, 194, -2])
def test_num_io_tiles_when_not_then_names_the_range(tiles):
    with pytest.raises(
        AssertionError, match=r"numIOTiles must be an even number between 32 and 192\."
    ):
        Options().TensorLocations.numIOTiles(tiles)


@pytest.mark.parametrize("what", ["activation", "weight", "optimizer", "accumulator"])
def test_location_then_stores_a_copy_of_the_settings(what):
    locations = Options().TensorLocations
    settings = TensorLocationSettings().useOnChipStorage(False)
    assert getattr(locations, f"set{what.capitalize()}Location")(settings) is locations
    settings.useOnChipStorage(True)
    assert locations.toDict() == {f"location_{what}": {"onChip": 0}}
    with pytest.raises(AssertionError, match="must be of type TensorLocationSettings"):
        getattr(locations, f"set{what.capitalize()}Location")({"onChip": 0})


def test_tensor_location_settings_then_flags_are_integers():
    settings = (
        TensorLocationSettings()
        .minElementsForOffChip(1024)
        .minElementsForReplicatedTensorSharding(64)
        .useOnChipStorage()
        .useReplicatedTensorSharding()
        .useIOTilesToLoad(False)
        .useIOTilesToStore()
    )
    expected = {
        "minElementsForOffChip": 1024,
        "minElementsForReplicatedTensorSharding": 64,
        "onChip": 1,
        "useReplicatedTensorSharding": 1,
        "useIOTilesToLoad": 0,
        "useIOTilesToStore": 1,
    }
    assert settings.toDict() == expected
    assert {type(value) for value in settings.toDict().values()} == {int}
    assert "onChip" not in settings.useOnChipStorage(None).toDict()


@pytest.mark.parametrize(
    "method",
    [
        "useOnChipStorage",
        "useReplicatedTensorSharding",
        "useIOTilesToLoad",
        "useIOTilesToStore",
    ],
)
def test_tensor_location_flag_when_not_a_bool_then_asserts(method):
    with pytest.raises(AssertionError, match=f"{method} must be of type bool"):
        getattr(TensorLocationSettings(), method)(1)
