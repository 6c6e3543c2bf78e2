"""Conversion of the user's `Options` to the `CompileConfig` that all lower layers read."""

from __future__ import annotations

from typing import Any

from poptorch_emu.config import (
    AnchorConfig,
    CompileConfig,
    MachineConfig,
    Recomputation,
    ShardingConfig,
    SyntheticData,
    TargetKind,
    WeightGroups,
)
from poptorch_emu.distributed.launch_environment import check_index
from poptorch_emu.enums import OutputMode, ReductionType
from poptorch_emu.errors import compiler_error
from poptorch_emu.log import compiler_logger
from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.options.auto_report import report_directory
from poptorch_emu.options.optimizer_settings import has_running_mean
from poptorch_emu.options.options import Options
from poptorch_emu.options.popart import validate_options
from poptorch_emu.options.strategies import strategy_config
from poptorch_emu.options.target import ipu_version_of, target_of
from poptorch_emu.options.tensor_locations import location_config
from poptorch_emu.trace.refusals import strict

# Source: PopART's default for `minElementsForReplicatedTensorSharding`.
_MIN_ELEMENTS_FOR_SHARDING = 8192
# Value of the default schedule of an update (`AccumulateOuterFragmentSchedule`), remembered from
# PopART. Other schedules let the IPUs of a replica run their updates at the same time.
_SERIAL_UPDATE = 1


def freeze(
    options: Options, *, is_training: bool, weight_groups: tuple[WeightGroups, ...] = ()
) -> CompileConfig:
    """Returns the configuration of a compilation that `options` describe.

    Args:
        options: options of the user.
        is_training: whether the model is trained.
        weight_groups: groups of replicas with different weights, from `replicaGrouping`.

    Raises:
        AssertionError: no output mode was chosen.
        Error: the backend does not know an option, or a value is out of range.
        ValueError: a depth of buffers is below 1, or the input groups do not divide the replicas.
    """
    validate_options(options.toDict())
    _check_grouping(options)
    training, backend = options.Training, options._Popart.options
    target = target_of(options)
    machine = _machine(options, target)
    return CompileConfig(
        is_training=is_training,
        device_iterations=options.device_iterations,
        gradient_accumulation=training.gradient_accumulation,
        replication_factor=options.replication_factor,
        input_group_size=options.input_group_size,
        input_group_type=options.input_cgt,
        output_mode=OutputMode(options.output_mode),
        output_return_period=options.output_return_period,
        reduction_type=training.accumulation_and_replication_reduction_type,
        is_running_mean=_is_running_mean(options),
        broadcast_buffers=_broadcast_buffers(options),
        weight_groups=weight_groups,
        sharding=_sharding(options),
        target=target,
        ipu_id=options("ipu_id") if options.exists("ipu_id") else None,
        updatable_buffers=tuple(backend.get("updatableNamedBuffers", ())),
        max_repeat_logs=options.max_repeat_logs,
        auto_round_num_ipus=options.auto_round_num_ipus,
        random_seed=options("random_seed") if options.exists("random_seed") else None,
        strategy=strategy_config(options._execution_strategy),
        recomputation=_recomputation(backend),
        host_recomputation=options.Emulator.host_recomputation,
        max_guarded_programs=options.Emulator.max_guarded_programs,
        locations=location_config(options.TensorLocations, machine.num_io_tiles > 0),
        machine=machine,
        anchors=_anchors(options),
        num_processes=options.Distributed.numProcesses,
        process_id=_process_id(options),
        checks_floating_point=backend.get("enableFloatingPointChecks", False),
        synthetic_data=SyntheticData(backend.get("syntheticDataMode", 0)),
        rounds_stochastically=bool(backend.get("enableStochasticRounding", False)),
        cache_dir=_cache_dir(backend, target),
        profile_dir=report_directory(backend.get("engineOptions", {})),
        model_name=options("model_name") if options.exists("model_name") else None,
        shows_progress_bar=options._show_compilation_progress_bar,
        names_modules=options._module_namescope_enabled,
        cast_rules=options.Precision._cast_rules(),
    )


def _broadcast_buffers(options: Options) -> bool | None:
    """Returns the option if the user set it; in strict mode the default counts as set."""
    is_said = "broadcast_buffers" in options._chosen or strict.raises_errors()
    return options.broadcast_buffers if is_said else None


def _sharding(options: Options) -> ShardingConfig:
    """Returns, for each kind of tensor, the number of elements above which replicas shard it."""
    locations = options.TensorLocations

    def threshold(kind: str) -> int | None:
        key = f"location_{kind}"
        settings: dict[str, int] = locations(key) if locations.exists(key) else {}
        if not settings.get("useReplicatedTensorSharding", 0):
            return None
        return settings.get("minElementsForReplicatedTensorSharding", _MIN_ELEMENTS_FOR_SHARDING)

    return ShardingConfig(
        weight=threshold("weight"),
        optimizer=threshold("optimizer"),
        accumulator=threshold("accumulator"),
        activation=threshold("activation"),
    )


def _is_running_mean(options: Options) -> bool:
    """Returns whether accumulators hold a running mean, which sums never do."""
    is_mean = options.Training.accumulation_and_replication_reduction_type == ReductionType.Mean
    return is_mean and has_running_mean(options)


def _process_id(options: Options) -> int:
    process, count = options.Distributed.processId, options.Distributed.numProcesses
    check_index(process, max(count, 1))
    return process


def _check_grouping(options: Options) -> None:
    if options.replication_factor % options.input_group_size != 0:
        raise ValueError(
            f"input_group_size ({options.input_group_size}) must be a factor of replication_factor "
            f"({options.replication_factor}). Call inputReplicaGrouping() after "
            "replicationFactor()."
        )


def _recomputation(backend: dict[str, Any]) -> Recomputation | None:
    asked = backend.get("autoRecomputation")
    return None if asked is None else Recomputation(asked)


def _machine(options: Options, target: TargetKind) -> MachineConfig:
    backend = options._Popart.options
    default = MachineConfig()
    depth = max(
        backend.get("defaultBufferingDepth", 1), backend.get("defaultPrefetchBufferingDepth", 1)
    )
    if depth < 1:
        raise ValueError(
            "poptorch.Options._Popart.set('defaultBufferingDepth', ...) must be at least 1, not "
            f"{depth}."
        )
    convolution_options = backend.get("convolutionOptions", {})
    update_schedule = backend.get("accumulateOuterFragmentSettings.schedule", _SERIAL_UPDATE)
    version = ipu_version_of(options, target)
    return MachineConfig(
        num_io_tiles=_num_io_tiles(options, IPU_OF_VERSION[version].num_tiles),
        available_memory_proportion=tuple(
            (ipu, float(part)) for ipu, part in sorted(options.available_memory_proportion.items())
        ),
        buffering_depth=depth,
        is_prefetched=backend.get("enablePrefetchDatastreams", default.is_prefetched),
        is_outlined=backend.get("enableOutlining", default.is_outlined),
        outline_threshold=backend.get("outlineThreshold", default.outline_threshold),
        version=version,
        has_half_products=backend.get("partialsTypeMatMuls") == "half",
        has_half_convolutions=convolution_options.get("partialsType") == "half",
        updates_in_turn=update_schedule == _SERIAL_UPDATE,
    )


def _num_io_tiles(options: Options, num_tiles: int) -> int:
    locations = options.TensorLocations
    is_set = locations.exists("numIOTiles")
    asked: int = locations("numIOTiles") if is_set else options._Popart.options.get("numIOTiles", 0)
    if not 0 <= asked < num_tiles:
        raise compiler_error(
            f"numIOTiles is {asked}, but an IPU has {num_tiles} tiles, of which some must compute. "
            "Set apart an even number between 32 and 192."
        )
    return asked


def _anchors(options: Options) -> tuple[AnchorConfig, ...]:
    anchors = []
    for short_name, (long_name, is_default, mode, period) in options.anchored_tensors.items():
        if is_default:
            mode, period = options.output_mode, options.output_return_period
        anchors.append(AnchorConfig(short_name, long_name, OutputMode(mode), period))
    return tuple(anchors)


def _cache_dir(backend: dict[str, Any], target: TargetKind) -> str | None:
    if not backend.get("enableEngineCaching"):
        return None
    if target is TargetKind.IPU_MODEL:
        compiler_logger.warning(
            "enableExecutableCaching doesn't work with the IPU model: nothing is cached."
        )
        return None
    path: str | None = backend.get("cachePath")
    return path
