"""The user's settings for a Keras model, and the executor options that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from poptorch_emu.config import TableConfig
from poptorch_emu.emulator.pipeline_order import set_schedule
from poptorch_emu.enums import MeanReductionStrategy, OutputMode, ReductionType
from poptorch_emu.errors import make_error
from poptorch_emu.keras.stages.stage_plan import StagePlan
from poptorch_emu.log import logger
from poptorch_emu.options import (
    Options,
    PipelinedExecution,
    ShardedExecution,
    TensorLocationSettings,
)
from poptorch_emu.options.strategies import Stage
from poptorch_emu.schedule.tables.named import make_table
from poptorch_emu.troubleshooting import Topic


class PipelineSchedule(Enum):
    """The order of work in the stages of a pipeline (exact)."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(Enum):
    """The mode of recomputing activations in a pipeline (modelled: all modes are the same)."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


class GradientAccumulationReductionMethod(Enum):
    """Reduction of a replica's gradients over micro-batches; replicas are added (exact)."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2


class ReplicatedMetricReductionMethod(Enum):
    """Metrics of replicas that are logged: by default those of the last replica (exact)."""

    NONE = 0
    LIST = 1
    SUM = 2
    MEAN = 3


# Numbers of the backend's recomputation modes.
_NO_RECOMPUTATION, _STANDARD_RECOMPUTATION, _PIPELINE_RECOMPUTATION = 0, 1, 3


@dataclass(frozen=True)
class Placement:
    """Tensors in streaming memory, and tensors that are sharded over the replicas."""

    offload_weights: bool = False
    offload_weight_update_variables: bool = False
    offload_activations: bool = False
    offload_gradient_accumulation_buffers: bool = False
    replicated_optimizer_state_sharding: bool = False

    def apply(self, options: Options) -> None:
        """Sets the locations of `options`."""
        locations = options.TensorLocations
        for is_off_chip, set_location in (
            (self.offload_weights, locations.setWeightLocation),
            (self.offload_activations, locations.setActivationLocation),
            (self.offload_gradient_accumulation_buffers, locations.setAccumulatorLocation),
        ):
            if is_off_chip:
                set_location(TensorLocationSettings().useOnChipStorage(False))
        if self.offload_weight_update_variables or self.replicated_optimizer_state_sharding:
            location = TensorLocationSettings()
            location.useOnChipStorage(not self.offload_weight_update_variables)
            location.useReplicatedTensorSharding(self.replicated_optimizer_state_sharding)
            locations.setOptimizerLocation(location)


@dataclass(frozen=True)
class SystemSettings:
    """The settings of an `IPUConfig`.

    Attributes:
        num_ipus: number of IPUs for all replicas; `None` for one replica.
        allow_recompute: whether activations may be recomputed.
        available_memory_proportion: share of an IPU's memory for products; `None` for the default.
        num_io_tiles: number of tiles for I/O; 0 for none.
        uses_stochastic_rounding: whether training and inference round stochastically.
        checks_floating_point: whether floating-point exceptions are errors.
        can_run: whether the process may attach to IPUs.
        seed: seed of the device's random numbers; `None` for any.
        process: index of this process among those that train together.
        num_processes: number of processes that train together.
    """

    num_ipus: int | None = None
    allow_recompute: bool = False
    available_memory_proportion: float | None = None
    num_io_tiles: int = 0
    uses_stochastic_rounding: bool = False
    checks_floating_point: bool = False
    can_run: bool = True
    seed: int | None = None
    process: int = 0
    num_processes: int = 1


@dataclass(frozen=True)
class ModelSettings:
    """The settings of one model.

    Attributes:
        accumulation: number of micro-batches that one replica accumulates for an update.
        reduction: reduction of their gradients; `None` for the default, their sum.
        device_mapping: IPU of each stage.
        schedule: schedule of the pipeline; a table also determines the IPU of each stage.
        recomputation: mode of the pipeline; `None` if `IPUConfig` decides.
        placement: locations of the model's tensors.
        proportions: part of its IPU's memory that products of each stage may use; empty if
            `IPUConfig` decides.
    """

    accumulation: int = 1
    reduction: GradientAccumulationReductionMethod | None = None
    device_mapping: tuple[int, ...] | None = None
    schedule: PipelineSchedule | TableConfig = PipelineSchedule.Grouped
    recomputation: RecomputationMode | None = None
    placement: Placement = Placement()
    proportions: tuple[float | None, ...] = ()

    @property
    def is_mean(self) -> bool:
        """Whether the gradients of micro-batches are averaged; by default they are added."""
        return self.reduction not in (None, GradientAccumulationReductionMethod.SUM)


def num_replicas(system: SystemSettings, plan: StagePlan | None) -> int:
    """Returns how many replicas the IPUs hold, if each takes a power of two of them.

    Raises:
        Error: the process may not attach to IPUs.
        ValueError: the IPUs do not hold one replica.
    """
    if not system.can_run:
        raise make_error(
            "IPUConfig.device_connection.type says that this process never runs a program. Set "
            "DeviceConnectionType.ALWAYS or ON_DEMAND; a process that only compiles programs is "
            "not supported."
        )
    per_replica = 1 if plan is None else plan.num_ipus
    num_ipus = per_replica if system.num_ipus is None else system.num_ipus
    if num_ipus < per_replica:
        raise ValueError(
            f"IPUConfig.auto_select_ipus is {num_ipus}, but one replica of the model takes "
            f"{per_replica} IPUs. Select at least as many."
        )
    return max(num_ipus >> (per_replica - 1).bit_length(), 1)


@cache
def note_default_reduction() -> None:
    """Warns once in a process that gradients are added, because no reduction was set."""
    logger.warning(
        "The gradients of the batches of an update are added up, because no other reduction was "
        "set; gradients of replicas are always added up. Divide the loss or the learning rate by "
        "their number, or set gradient_accumulation_reduction_method='mean', which divides by the "
        f"accumulation count; {Topic.ADDED_GRADIENTS}"
    )


def executor_options(
    system: SystemSettings,
    settings: ModelSettings,
    plan: StagePlan | None,
    steps: int,
    *,
    replicas: int,
    is_training: bool,
) -> Options:
    """Returns the options of an executor whose call makes `steps` steps of Keras."""
    options = Options()
    options.showCompilationProgressBar(False).relaxOptimizerAttributesChecks()
    options.autoRoundNumIPUs(True)
    accumulation = settings.accumulation if is_training else 1
    options.deviceIterations(steps // (accumulation * replicas)).outputMode(OutputMode.All)
    options.replicationFactor(replicas)
    if system.seed is not None:
        options.createOrSet(random_seed=system.seed)
    if replicas > 1:
        options.broadcastBuffers(False)  # Each replica has its own moving means.
    if plan is not None:
        in_flight = accumulation if is_training else steps // replicas
        _apply_stages(options, settings, plan, in_flight, is_training=is_training)
    if is_training:
        if system.num_processes > 1:
            options.Distributed.configureProcessId(system.process, system.num_processes)
        options.Training.gradientAccumulation(accumulation)
        _apply_reduction(options, settings, replicas)
        options._Popart.set("autoRecomputation", _recomputation(system, settings, plan))
        options._Popart.by_front_end.add("autoRecomputation")
        settings.placement.apply(options)
    _apply_system(options, system)
    _apply_proportions(options, system, settings, plan)
    return options


def note_reduction(settings: ModelSettings, replicas: int) -> None:
    """Warns once in a process if gradients are added, and no reduction was set."""
    if settings.reduction is None and settings.accumulation * replicas > 1:
        note_default_reduction()


def _apply_reduction(options: Options, settings: ModelSettings, replicas: int) -> None:
    note_reduction(settings, replicas)
    training = options.Training
    training.accumulationAndReplicationReductionType(
        ReductionType.Mean if settings.is_mean else ReductionType.Sum
    )
    if settings.reduction is GradientAccumulationReductionMethod.RUNNING_MEAN:
        training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)


def checked_member(kind: type[Enum], value: Any, name: str) -> Any:
    """Returns a member of an enumeration.

    Raises:
        TypeError: `value` is not a member.
    """
    if not isinstance(value, kind):
        known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise TypeError(f"{name} must be one of {known}, not {value!r}.")
    return value


def checked_method(kind: type[Enum], value: Any, name: str) -> Any:
    """Returns a member of an enumeration, which may be given by its name in any case.

    Raises:
        TypeError: `value` is neither a member nor a string.
        ValueError: the string is not the name of a member.
    """
    if not isinstance(value, str):
        return checked_member(kind, value, name)
    if value.upper() not in kind.__members__:
        known = ", ".join(repr(member.lower()) for member in kind.__members__)
        raise ValueError(f"{name} must be one of {known}, not {value!r}.")
    return kind[value.upper()]


def checked_schedule(
    value: Any, device_mapping: Sequence[int] | None
) -> PipelineSchedule | TableConfig:
    """Returns the schedule of a pipeline; `None` means grouped.

    Raises:
        TypeError: `value` is not a schedule.
        ValueError: `value` is a table, which maps stages to IPUs, and `device_mapping` is given,
            too.
    """
    if value is None:
        return PipelineSchedule.Grouped
    if not isinstance(value, PipelineSchedule | TableConfig):
        known = ", ".join(f"PipelineSchedule.{member.name}" for member in PipelineSchedule)
        raise TypeError(
            f"pipeline_schedule must be one of {known}, or a schedule that a function of "
            f"poptorch_emu.emulator.schedules returns, not {value!r}."
        )
    if isinstance(value, TableConfig) and device_mapping is not None:
        raise ValueError(
            f"device_mapping={list(device_mapping)} was given, but the schedule '{value.name}' "
            "determines the IPU of each stage. Leave device_mapping out."
        )
    return value


def checked_accumulation(value: Any) -> int:
    """Returns a checked number of micro-batches.

    Raises:
        ValueError: `value` is not a positive integer.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"gradient_accumulation_steps_per_replica must be a positive integer, not {value!r}."
        )
    return value


def checked_placement(flags: Mapping[str, bool | None]) -> Placement:
    """Returns the locations of tensors; `None` means the default, on chip.

    Raises:
        TypeError: a value is neither a bool nor `None`.
    """
    for name, value in flags.items():
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"{name} must be True, False or None, not {value!r}.")
    return Placement(**{name: bool(value) for name, value in flags.items()})


def checked_mapping(device_mapping: Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns the IPU of each stage.

    Raises:
        TypeError: the mapping is not a list.
        ValueError: an entry is not an integer from 0 on.
    """
    if device_mapping is None:
        return None
    if not isinstance(device_mapping, (list, tuple)):
        raise TypeError(
            f"device_mapping must be a list with the IPU of each stage, not {device_mapping!r}."
        )
    for ipu in device_mapping:
        if not isinstance(ipu, int) or isinstance(ipu, bool) or ipu < 0:
            raise ValueError(
                f"device_mapping has the entry {ipu!r}, but must have the number of an IPU, from 0 "
                "on, for each stage."
            )
    return tuple(device_mapping)


def _apply_stages(
    options: Options,
    settings: ModelSettings,
    plan: StagePlan,
    in_flight: int,
    *,
    is_training: bool,
) -> None:
    """Sets the strategy: a pipeline, if there are enough batches in a row to fill it.

    A table is a schedule for training; inference uses its placement as a grouped pipeline.

    Raises:
        ValueError: training has too few batches in a row.
    """
    stages = [Stage(str(stage)).ipu(ipu) for stage, ipu in enumerate(plan.ipus)]
    schedule = settings.schedule
    if isinstance(schedule, TableConfig) and is_training:
        _check_table(schedule, plan, in_flight)
        options.setExecutionStrategy(PipelinedExecution(*stages))
        set_schedule(options, schedule)
        return
    needed = 2 * plan.num_turns - 1 if is_training else plan.num_turns
    if in_flight >= needed:
        options.setExecutionStrategy(PipelinedExecution(*stages))
        if isinstance(schedule, PipelineSchedule):
            set_schedule(options, schedule.name.lower())
    elif not is_training:
        options.setExecutionStrategy(ShardedExecution(*stages))
    else:
        raise ValueError(
            f"gradient_accumulation_steps_per_replica is {in_flight}, but to train a pipeline of "
            f"{plan.num_turns} stages it must be at least {needed}: one for each stage of forward "
            "and backward. Set it with set_pipelining_options."
        )


def _check_table(table: TableConfig, plan: StagePlan, in_flight: int) -> None:
    try:
        make_table(table, len(plan.ipus), in_flight, is_training=True)
    except ValueError as fault:
        raise ValueError(
            f"pipeline_schedule '{table.name}' does not fit {len(plan.ipus)} stages and "
            f"gradient_accumulation_steps_per_replica={in_flight}, which is the number of "
            f"micro-batches. {fault}"
        ) from fault


def _recomputation(system: SystemSettings, settings: ModelSettings, plan: StagePlan | None) -> int:
    if not system.allow_recompute and settings.recomputation is None:
        return _NO_RECOMPUTATION
    return _STANDARD_RECOMPUTATION if plan is None else _PIPELINE_RECOMPUTATION


def _apply_proportions(
    options: Options, system: SystemSettings, settings: ModelSettings, plan: StagePlan | None
) -> None:
    """Sets the proportion of each IPU: the least of its stages, or else that of the system.

    Raises:
        ValueError: the model has another number of stages than there are options.
    """
    ipus, of_stages = (0,) if plan is None else plan.ipus, settings.proportions
    if of_stages and len(of_stages) != len(ipus):
        raise ValueError(
            f"The options of set_pipelining_options list {len(of_stages)} stages, but the model "
            f"has {len(ipus)}. List PipelineStageOptions for each stage."
        )
    found: dict[str, float] = {}
    for ipu, own in zip(ipus, of_stages or [None] * len(ipus), strict=True):
        proportion = system.available_memory_proportion if own is None else own
        if proportion is not None:
            found[f"IPU{ipu}"] = min(proportion, found.get(f"IPU{ipu}", proportion))
    if found:
        options.setAvailableMemoryProportion(found)


def _apply_system(options: Options, system: SystemSettings) -> None:
    if system.num_io_tiles:
        options.TensorLocations.numIOTiles(system.num_io_tiles)
    if system.uses_stochastic_rounding:
        options.Precision.enableStochasticRounding(True)
    if system.checks_floating_point:
        options.Precision.enableFloatingPointExceptions(True)
