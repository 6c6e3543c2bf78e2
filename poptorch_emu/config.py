"""Immutable values that describe one compilation.

`options/freeze.py` creates a `CompileConfig` from the user's `Options`; all lower layers read only
this. The module knows neither `Options` nor tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from poptorch_emu.enums import AutoStage, CommGroupType, Liveness, OutputMode, ReductionType


class StrategyKind(Enum):
    """Execution strategies, which distribute the blocks of a model over IPUs."""

    PIPELINED = "pipelined"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial_phased"
    PARALLEL_PHASED = "parallel_phased"


class SyntheticData(Enum):
    """Data that the device uses in place of the host's inputs; the values are PopART's."""

    OFF = 0
    ZEROS = 1
    RANDOM_NORMAL = 2
    RANDOM_UNIFORM = 3


class PipelineOrder(Enum):
    """Orders of the stages of a pipeline; PopTorch's order is grouped."""

    GROUPED = "grouped"
    INTERLEAVED = "interleaved"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class TableConfig:
    """A schedule of a pipeline as a table, which PopTorch does not offer.

    Attributes:
        name: name of a known schedule, or of the user's own.
        stages_per_ipu: number of stages on each IPU of a known schedule.
        rows: the user's own table as text, one row for each IPU.
    """

    name: str
    stages_per_ipu: int = 1
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class StageConfig:
    """A stage that the user named: its blocks and, if given, its IPU and phase."""

    block_ids: tuple[str, ...]
    ipu: int | None = None
    phase: int = 0


@dataclass(frozen=True)
class StrategyConfig:
    """The execution strategy: explicit `stages`, or none and a rule that creates them.

    Attributes:
        order: order of a pipeline's stages.
        table: schedule of a pipeline; it replaces `order`.
        liveness: time at which tensors of phases leave the chip.
        has_separate_backward_phase: whether the first backward phase has a number of its own
            instead of that of the last forward phase.
    """

    kind: StrategyKind = StrategyKind.PIPELINED
    stages: tuple[StageConfig, ...] = ()
    auto_stage: AutoStage | None = AutoStage.SameAsIpu
    order: PipelineOrder = PipelineOrder.GROUPED
    table: TableConfig | None = None
    liveness: Liveness = Liveness.AlwaysLive
    has_separate_backward_phase: bool = False

    @property
    def meets_in_cycles(self) -> bool:
        """Whether the blocks are a pipeline whose IPUs synchronise after each pipeline cycle."""
        is_ordered = self.order in (PipelineOrder.GROUPED, PipelineOrder.INTERLEAVED)
        return self.kind is StrategyKind.PIPELINED and is_ordered and self.table is None

    @property
    def is_phased(self) -> bool:
        """Whether the blocks form phases."""
        return self.kind in (StrategyKind.SERIAL_PHASED, StrategyKind.PARALLEL_PHASED)

    @property
    def is_automatic(self) -> bool:
        """Whether stages are created from blocks in the order of their first operations."""
        return self.auto_stage is not None


class Recomputation(Enum):
    """Values of forward that backward recomputes; the numbers are the backend's."""

    NONE = 0
    STANDARD = 1
    NORM_ONLY = 2
    PIPELINE = 3
    ALL = 4


class HostRecomputation(Enum):
    """Whether the engine executes the machine's recomputation; results have the same bits."""

    AUTOMATIC = "automatic"  # Executed if the stashes would not fit in the host's memory.
    MODELLED = "modelled"
    EXECUTED = "executed"


@dataclass(frozen=True)
class TensorLocation:
    """The location of the tensors of one kind.

    Attributes:
        is_on_chip: whether the tensors are in the IPU's memory instead of streaming memory; `None`
            if the user did not choose.
        min_elements_off_chip: number of elements below which a tensor stays on chip. Source:
            PopART's default.
        uses_io_tiles_to_load: whether the tensors are loaded through the tiles reserved for I/O.
        uses_io_tiles_to_store: whether tensors on the chip are on the tiles reserved for I/O.
    """

    is_on_chip: bool | None = None
    min_elements_off_chip: int = 2
    uses_io_tiles_to_load: bool = False
    uses_io_tiles_to_store: bool = False

    def is_remote(self, num_elements: int) -> bool:
        """Returns whether a tensor of this size is in streaming memory."""
        return self.is_on_chip is False and num_elements >= self.min_elements_off_chip


@dataclass(frozen=True)
class LocationConfig:
    """Locations of each kind of tensor; a location never changes a result."""

    activation: TensorLocation = TensorLocation()
    weight: TensorLocation = TensorLocation()
    optimizer: TensorLocation = TensorLocation()
    accumulator: TensorLocation = TensorLocation()


@dataclass(frozen=True)
class MachineConfig:
    """Settings that only the model of the machine reads.

    Attributes:
        num_io_tiles: number of tiles on each IPU that are reserved for I/O.
        available_memory_proportion: pairs of an IPU and the share of its memory that a matrix
            product may use.
        buffering_depth: number of micro-batches of an input that the host sends ahead.
        is_prefetched: whether the host prepares inputs before the IPU requests them.
        is_outlined: whether equal parts of the code are stored once.
        outline_threshold: smallest saving that lets a part of the code be stored once.
        version: version of the IPUs: 1, 2 or, for Bow, 21.
        has_half_products: whether float16 matrix products are summed in float16.
        has_half_convolutions: whether float16 convolutions are summed in float16.
        updates_in_turn: whether the IPUs of a replica apply accumulated gradients one after
            another.
    """

    num_io_tiles: int = 0
    available_memory_proportion: tuple[tuple[int, float], ...] = ()
    buffering_depth: int = 1
    is_prefetched: bool = True
    is_outlined: bool = True
    outline_threshold: float = 1.0
    version: int = 2
    has_half_products: bool = False
    has_half_convolutions: bool = False
    updates_in_turn: bool = True


class TargetKind(Enum):
    """Targets of a compilation."""

    HARDWARE = "hardware"  # The virtual system, with a limited number of IPUs.
    IPU_MODEL = "ipu_model"  # The IPU Model, with any number of IPUs.
    OFFLINE = "offline"  # Compiled without a device, never run.


@dataclass(frozen=True)
class AnchorConfig:
    """A tensor inside the model that the host reads (`Options.anchorTensor`)."""

    short_name: str
    long_name: str
    output_mode: OutputMode
    return_period: int = 1


def group_of_replica(
    group_type: CommGroupType, group_size: int, num_replicas: int
) -> tuple[int, ...]:
    """Returns the index of each replica's group.

    Source: PopTorch's groups of replicas. `group_size` matters only for neighbouring and for
    equally spaced replicas.
    """
    if group_type is CommGroupType.All:
        group_size = num_replicas
    if group_type is CommGroupType.NoGrouping:
        group_size = 1
    num_groups = num_replicas // group_size
    if group_type is CommGroupType.Orthogonal:
        return tuple(replica % num_groups for replica in range(num_replicas))
    return tuple(replica // group_size for replica in range(num_replicas))


def num_input_groups(replication_factor: int, input_group_size: int) -> int:
    """Returns the number of different input blocks that the replicas read in one micro-batch."""
    return replication_factor // input_group_size


def batches_per_step(
    device_iterations: int,
    gradient_accumulation: int,
    replication_factor: int,
    input_group_size: int,
) -> int:
    """Returns the number of micro-batches of the host's inputs that one call consumes.

    Source: PopTorch user guide, "Efficient data batching"; groups of replicas share their input.
    """
    groups = num_input_groups(replication_factor, input_group_size)
    return device_iterations * gradient_accumulation * groups


@dataclass(frozen=True)
class WeightGroups:
    """Groups of replicas, each with its own value of one parameter of the model.

    Attributes:
        name: name of the parameter, whose first dimension on the host counts the groups.
        reads_all: whether the host reads one value for each replica instead of each group.
    """

    name: str
    group_type: CommGroupType
    group_size: int
    reads_all: bool

    def of_replica(self, num_replicas: int) -> tuple[int, ...]:
        """Returns the index of each replica's group."""
        return group_of_replica(self.group_type, self.group_size, num_replicas)


@dataclass(frozen=True)
class ShardingConfig:
    """Number of elements from which each kind of tensor is sharded over replicas; `None`: never."""

    weight: int | None = None
    optimizer: int | None = None
    accumulator: int | None = None
    activation: int | None = None


class CastRule(Enum):
    """Casts of an operation's floating-point arguments in a region of `autocast`."""

    FP16 = "fp16"
    FP32 = "fp32"
    PROMOTE = "promote"  # Casts to the widest dtype among the arguments.
    DEMOTE = "demote"  # Casts to the narrowest dtype among the arguments.


@dataclass(frozen=True)
class CompileConfig:
    """All settings that decide about a compilation; counts are at least 1.

    Attributes:
        recomputation: the user's choice; `None` leaves it to the compiler.
        host_recomputation: whether the engine executes that recomputation.
        max_guarded_programs: number of programs that a model may store, each for other values of
            inputs that forward reads; 0 forbids reading values.
        cast_rules: rules of `autocast` by the bare name of a function or a module class.
    """

    is_training: bool
    device_iterations: int = 1
    gradient_accumulation: int = 1
    replication_factor: int = 1
    input_group_size: int = 1
    input_group_type: CommGroupType = CommGroupType.Consecutive
    output_mode: OutputMode = OutputMode.All
    output_return_period: int = 1
    reduction_type: ReductionType = ReductionType.Mean
    is_running_mean: bool = False
    broadcast_buffers: bool | None = None
    weight_groups: tuple[WeightGroups, ...] = ()
    sharding: ShardingConfig = ShardingConfig()
    target: TargetKind = TargetKind.HARDWARE
    ipu_id: int | None = None
    updatable_buffers: tuple[str, ...] = ()
    max_repeat_logs: int = 4
    auto_round_num_ipus: bool = False
    random_seed: int | None = None
    strategy: StrategyConfig = StrategyConfig()
    recomputation: Recomputation | None = None
    host_recomputation: HostRecomputation = HostRecomputation.AUTOMATIC
    locations: LocationConfig = LocationConfig()
    machine: MachineConfig = MachineConfig()
    anchors: tuple[AnchorConfig, ...] = ()
    num_processes: int = 1
    process_id: int = 0
    checks_floating_point: bool = False
    synthetic_data: SyntheticData = SyntheticData.OFF
    rounds_stochastically: bool = False
    max_guarded_programs: int = 0
    cache_dir: str | None = None
    profile_dir: str | None = None
    model_name: str | None = None
    shows_progress_bar: bool = True
    names_modules: bool = True
    # Excluded when configs are compared, because the recorded operations already contain the casts.
    cast_rules: Mapping[str, CastRule] = field(default_factory=dict, compare=False)

    @property
    def is_distributed(self) -> bool:
        """Whether replicas of other processes train the same weights."""
        return self.is_training and self.num_processes > 1

    @property
    def num_sharers(self) -> int:
        """The number of replicas that share a sharded tensor: in training those of all
        processes."""
        return self.replication_factor * (self.num_processes if self.is_training else 1)

    @property
    def num_input_groups(self) -> int:
        """The number of different input blocks that the replicas read in one micro-batch."""
        return num_input_groups(self.replication_factor, self.input_group_size)

    @property
    def num_micro_batches(self) -> int:
        """The number of micro-batches in a window: an update in training, a call in inference."""
        return self.gradient_accumulation if self.is_training else self.device_iterations

    @property
    def batch_factor(self) -> int:
        """The ratio of the rows of an input to the rows of a micro-batch."""
        return batches_per_step(
            self.device_iterations,
            self.gradient_accumulation,
            self.replication_factor,
            self.input_group_size,
        )
