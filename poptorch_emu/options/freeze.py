"""From the user's `Options` to the `CompileConfig` of the floors below, the only place of that."""

from __future__ import annotations

import os
from typing import Any

from poptorch_emu.config import AnchorConfig, CompileConfig
from poptorch_emu.enums import MeanReductionStrategy, OutputMode, ReductionType
from poptorch_emu.log import logger
from poptorch_emu.options.options import Options
from poptorch_emu.options.popart import validate_options
from poptorch_emu.options.strategies import strategy_config

# Environment: choose Poplar's model of the IPU unless the options do.
_IPU_MODEL_VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")


def freeze(options: Options, *, is_training: bool) -> CompileConfig:
    """Returns what `options` ask of a compilation.

    Raises:
        AssertionError: no output mode was picked.
        Error: the backend does not know an option, or its value is out of range.
        ValueError: a count is below 1, or the input groups do not divide the replicas.
    """
    validate_options(options.toDict())
    _check_grouping(options)
    training, backend = options.Training, options._Popart.options
    return CompileConfig(
        is_training=is_training,
        device_iterations=_count("deviceIterations", options.device_iterations),
        gradient_accumulation=_count(
            "Training.gradientAccumulation", training.gradient_accumulation
        ),
        replication_factor=_count("replicationFactor", options.replication_factor),
        input_group_size=options.input_group_size,
        input_group_type=options.input_cgt,
        output_mode=OutputMode(options.output_mode),
        output_return_period=options.output_return_period,
        reduction_type=training.accumulation_and_replication_reduction_type,
        is_running_mean=_is_running_mean(options),
        broadcast_buffers=options.broadcast_buffers,
        auto_round_num_ipus=options.auto_round_num_ipus,
        random_seed=options("random_seed") if options.exists("random_seed") else None,
        strategy=strategy_config(options._execution_strategy),
        anchors=_anchors(options),
        num_processes=_count("Distributed.configureProcessId", options.Distributed.numProcesses),
        checks_floating_point=backend.get("enableFloatingPointChecks", False),
        cache_dir=_cache_dir(options, backend),
        profile_dir=_profile_dir(backend),
        model_name=options("model_name") if options.exists("model_name") else None,
        shows_progress_bar=options._show_compilation_progress_bar,
        names_modules=options._module_namescope_enabled,
    )


def _cache_dir(options: Options, backend: dict[str, Any]) -> str | None:
    """Returns where executables are kept; with Poplar's model of the IPU, none are."""
    if not backend.get("enableEngineCaching"):
        return None
    if _uses_ipu_model(options):
        logger.warning("enableExecutableCaching doesn't work with the IPU model")
        return None
    return str(backend["cachePath"])


def _uses_ipu_model(options: Options) -> bool:
    if options.exists("use_model"):
        return bool(options("use_model"))
    return any(int(os.environ.get(name, "0")) for name in _IPU_MODEL_VARIABLES)


def _is_running_mean(options: Options) -> bool:
    """Returns whether accumulators hold a running mean; a sum has none."""
    training = options.Training
    is_mean = training.accumulation_and_replication_reduction_type == ReductionType.Mean
    strategy = training.meanAccumulationAndReplicationReductionStrategy
    return is_mean and strategy is MeanReductionStrategy.Running


def _count(option: str, count: int) -> int:
    if count < 1:
        raise ValueError(f"poptorch.Options.{option} must be at least 1, not {count}.")
    return int(count)


def _check_grouping(options: Options) -> None:
    if options.replication_factor % options.input_group_size != 0:
        raise ValueError(
            f"input_group_size ({options.input_group_size}) must be a factor of replication_factor "
            f"({options.replication_factor}). Call inputReplicaGrouping() after "
            "replicationFactor()."
        )


def _anchors(options: Options) -> tuple[AnchorConfig, ...]:
    anchors = []
    for short_name, (long_name, is_default, mode, period) in options.anchored_tensors.items():
        if is_default:
            mode, period = options.output_mode, options.output_return_period
        anchors.append(AnchorConfig(short_name, long_name, OutputMode(mode), period))
    return tuple(anchors)


def _profile_dir(backend: dict[str, Any]) -> str | None:
    engine_options = backend.get("engineOptions", {})
    if engine_options.get("autoReport.all") != "true":
        return None
    return str(engine_options.get("autoReport.directory", "."))
