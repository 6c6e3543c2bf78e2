"""Defaults have the values of the API reference (sections 7, 8, 9, 10 and 13)."""

import pytest
import torch

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Signatures and defaults", fidelity="exact")

# Section 7.3, in the order of the table, which is that of `repr`.
OPTION_VALUES = {
    "replication_factor": 1,
    "input_group_size": 1,
    "input_cgt": poptorch.CommGroupType.Consecutive,
    "broadcast_buffers": True,
    "device_iterations": 1,
    "log_dir": ".",
    "max_repeat_logs": 4,
    "auto_round_num_ipus": False,
    "anchored_tensors": {},
    "output_mode": 4,
    "output_return_period": 1,
    "connection_type": 0,
    "sync_pattern": 0,
    "available_memory_proportion": {},
}
TRAINING_VALUES = {
    "gradient_accumulation": 1,
    "accumulation_and_replication_reduction_type": poptorch.ReductionType.Mean,
    "meanAccumulationAndReplicationReductionStrategy": poptorch.MeanReductionStrategy.Post,
}
DISTRIBUTED_VALUES = {
    "num_distributed_processes": 1,
    "distributed_process_id": 0,
    "ipuof_configs": {},
}
POPART_VALUES = {"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False}


@pytest.fixture
def options(monkeypatch):
    for name in ("POPTORCH_CACHE_DIR", "POPTORCH_DEFAULT_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    return poptorch.Options()


@pytest.mark.parametrize("name", OPTION_VALUES)
def test_option_then_has_the_documented_default(options, name):
    value = getattr(options, name)
    assert value == OPTION_VALUES[name] == options(name)
    assert type(value) is type(OPTION_VALUES[name])


@pytest.mark.parametrize(
    "name", ["model_name", "use_model", "ipu_id", "ipu_version", "random_seed"]
)
def test_option_when_never_set_then_is_absent(options, name):
    assert not options.exists(name)
    with pytest.raises(AttributeError, match=f"Invalid attribute {name}"):
        getattr(options, name)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("Training", TRAINING_VALUES),
        ("Distributed", DISTRIBUTED_VALUES),
        ("Precision", {}),
        ("Jit", {}),
        ("TensorLocations", {}),
    ],
)
def test_part_of_options_then_has_the_documented_defaults(options, part, values):
    assert getattr(options, part).toDict() == values


def test_popart_options_then_start_as_documented(options):
    assert options._Popart.options == POPART_VALUES
    assert poptorch.TensorLocationSettings().toDict() == {}


def test_dictionary_of_all_options_then_has_all_defaults_in_the_documented_order(options):
    flat = options.outputMode(poptorch.OutputMode.All).toDict()
    bar = flat.pop("compilation_progress_bar_fn")
    assert callable(bar)
    expected = {
        "execution_mode": 0,
        **POPART_VALUES,
        **OPTION_VALUES,
        "output_mode": 2,
        **TRAINING_VALUES,
        **DISTRIBUTED_VALUES,
    }
    assert flat == expected
    assert list(flat) == list(expected)


def test_private_defaults_of_options_then_are_as_documented(options):
    assert type(options._execution_strategy) is poptorch.PipelinedExecution
    assert options._relax_optimizer_checks is False
    assert options._show_compilation_progress_bar is True
    assert options._module_namescope_enabled is True
    assert options._source_location_excludes == [
        "install/poptorch",
        "site-packages/torch",
        "site-packages/poptorch",
    ]


def test_strategies_then_start_as_documented():
    assert poptorch.ShardedExecution().backendOptions() == {"execution_mode": 1}
    for strategy, is_serial in (
        (poptorch.SerialPhasedExecution("a"), True),
        (poptorch.ParallelPhasedExecution("a"), False),
    ):
        assert strategy.backendOptions() == {
            "execution_mode": 2,
            "separate_backward_phase": False,
            "tensors_liveness": 0,
            "serial_phases_execution": is_serial,
        }
    stage = poptorch.Stage("a", "b")
    assert stage.blocks == ("a", "b")
    assert poptorch.Phase("a", "b").stages[0].blocks == ("a", "b")


# Values that the default `None` means (section 13.2).
_FLOAT32 = torch.float32
_ADAM_TYPES = {
    "accum_type": _FLOAT32,
    "first_order_momentum_accum_type": _FLOAT32,
    "second_order_momentum_accum_type": _FLOAT32,
}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        (
            "SGD",
            {
                "loss_scaling": 1.0,
                "use_combined_accum": False,
                "accum_type": _FLOAT32,
                "velocity_accum_type": _FLOAT32,
                "max_grad_norm": float("inf"),
            },
        ),
        ("Adam", {"loss_scaling": 1.0, "max_grad_norm": float("inf"), **_ADAM_TYPES}),
        (
            "AdamW",
            {
                "loss_scaling": 1.0,
                "bias_correction": True,
                "max_grad_norm": float("inf"),
                **_ADAM_TYPES,
            },
        ),
        ("RMSprop", {"loss_scaling": 1.0, "use_tf_variant": False, **_ADAM_TYPES}),
        (
            "LAMB",
            {
                "loss_scaling": 1.0,
                "bias_correction": True,
                "max_weight_norm": 65500.0,
                **_ADAM_TYPES,
            },
        ),
    ],
)
def test_optimizer_when_arguments_are_left_out_then_has_the_documented_values(name, attributes):
    needed = {"lr": 0.1} if name == "SGD" else {}
    optimizer = getattr(poptorch.optim, name)([torch.nn.Parameter(torch.ones(1))], **needed)
    assert {key: getattr(optimizer, key) for key in attributes} == attributes


def test_lamb_when_arguments_are_left_out_then_has_the_documented_groups():
    optimizer = poptorch.optim.LAMB([torch.nn.Parameter(torch.ones(1))])
    documented = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
    assert {key: optimizer.defaults[key] for key in documented} == documented
    assert optimizer.defaults["max_weight_norm"] == 65500.0
