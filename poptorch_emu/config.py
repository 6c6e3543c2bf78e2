"""What one compilation is asked to do, as immutable values.

`options/freeze.py` makes a `CompileConfig` from the user's `Options`; every floor below reads only
this. It knows neither `Options` nor tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from poptorch_emu.enums import AutoStage, CommGroupType, Liveness, OutputMode, ReductionType


class StrategyKind(Enum):
    """How blocks share the IPUs."""

    PIPELINED = "pipelined"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial_phased"
    PARALLEL_PHASED = "parallel_phased"


class SyntheticData(Enum):
    """What the device computes on instead of the host's inputs; the values are PopART's."""

    OFF = 0
    ZEROS = 1
    RANDOM_NORMAL = 2
    RANDOM_UNIFORM = 3


class PipelineOrder(Enum):
    """In which order the stages of a pipeline take turns; PopTorch's is grouped."""

    GROUPED = "grouped"
    INTERLEAVED = "interleaved"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class TableConfig:
    """A schedule of a pipeline as a table, which PopTorch has none of.

    Attributes:
        name: of those that are known, or of the user's own.
        stages_per_ipu: of those that are known.
        rows: the user's own table as text, one for each IPU.
    """

    name: str
    stages_per_ipu: int = 1
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class StageConfig:
    """One stage the user named: its blocks and, where given, its IPU and phase."""

    block_ids: tuple[str, ...]
    ipu: int | None = None
    phase: int = 0


@dataclass(frozen=True)
class StrategyConfig:
    """The execution strategy: explicit `stages`, or none and a rule that makes them.

    Attributes:
        order: of a pipeline.
        table: of a pipeline, in place of an order.
        liveness: when the tensors of phases leave the chip.
        has_separate_backward_phase: whether the last phase does not share its number with the
            first backward phase.
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
        """Whether the blocks are a pipeline whose IPUs meet after each of its cycles."""
        is_ordered = self.order in (PipelineOrder.GROUPED, PipelineOrder.INTERLEAVED)
        return self.kind is StrategyKind.PIPELINED and is_ordered and self.table is None

    @property
    def is_phased(self) -> bool:
        """Whether the blocks form phases."""
        return self.kind in (StrategyKind.SERIAL_PHASED, StrategyKind.PARALLEL_PHASED)

    @property
    def is_automatic(self) -> bool:
        """Whether stages are made from the blocks as they are met."""
        return self.auto_stage is not None


class Recomputation(Enum):
    """Which values of forward are computed again in backward; the numbers are the backend's."""

    NONE = 0
    STANDARD = 1
    NORM_ONLY = 2
    PIPELINE = 3
    ALL = 4


class HostRecomputation(Enum):
    """Whether the engine, too, computes again what the machine would; no bit depends on it."""

    AUTOMATIC = "automatic"  # Where the stashes would not fit into the host's memory.
    MODELLED = "modelled"
    EXECUTED = "executed"


@dataclass(frozen=True)
class TensorLocation:
    """Where the tensors of one kind live.

    Attributes:
        is_on_chip: in the IPU's memory rather than in streaming memory; `None` where nobody asked.
        min_elements_off_chip: smaller tensors stay on chip. Source: PopART's default.
        uses_io_tiles_to_load: they come back by way of the tiles set apart for I/O.
        uses_io_tiles_to_store: on chip they live on the tiles set apart for I/O.
    """

    is_on_chip: bool | None = None
    min_elements_off_chip: int = 2
    uses_io_tiles_to_load: bool = False
    uses_io_tiles_to_store: bool = False

    def is_remote(self, num_elements: int) -> bool:
        """Returns whether a tensor of this size lives in streaming memory."""
        return self.is_on_chip is False and num_elements >= self.min_elements_off_chip


@dataclass(frozen=True)
class LocationConfig:
    """Where each kind of tensor lives; placement never changes a result."""

    activation: TensorLocation = TensorLocation()
    weight: TensorLocation = TensorLocation()
    optimizer: TensorLocation = TensorLocation()
    accumulator: TensorLocation = TensorLocation()


@dataclass(frozen=True)
class MachineConfig:
    """What only the model of the machine reads.

    Attributes:
        num_io_tiles: tiles of each IPU that are set apart for I/O.
        available_memory_proportion: IPU and the part of its memory that a matrix product may take.
        buffering_depth: micro-batches of an input that the host sends ahead.
        is_prefetched: whether the host makes inputs ready before the IPU asks for them.
        is_outlined: whether equal parts of the code are stored once.
        outline_threshold: how much a part must save for that.
        version: of the IPUs: 1, 2 or, for Bow, 21.
        has_half_products: whether products of half matrices are summed in half precision.
        has_half_convolutions: whether convolutions of half numbers are.
        updates_in_turn: whether the IPUs of a replica apply accumulated gradients one after the
            other.
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
    """What a model is compiled for."""

    HARDWARE = "hardware"  # The virtual system, whose IPUs are counted.
    IPU_MODEL = "ipu_model"  # As many IPUs as the model likes.
    OFFLINE = "offline"  # Compiled without a device, never run.


@dataclass(frozen=True)
class AnchorConfig:
    """A tensor inside the model that the host wants to see (`Options.anchorTensor`)."""

    short_name: str
    long_name: str
    output_mode: OutputMode
    return_period: int = 1


def group_of_replica(
    group_type: CommGroupType, group_size: int, num_replicas: int
) -> tuple[int, ...]:
    """Returns for each replica the number of its group.

    Source: PopTorch's groups of replicas. `group_size` counts for neighbours and for equally
    spaced replicas only.
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
    """Returns how many different input blocks the replicas read in one micro-batch."""
    return replication_factor // input_group_size


def batches_per_step(
    device_iterations: int,
    gradient_accumulation: int,
    replication_factor: int,
    input_group_size: int,
) -> int:
    """Returns how many micro-batches of the host's inputs one call consumes.

    Source: PopTorch user guide, "Efficient data batching"; groups of replicas share their input.
    """
    groups = num_input_groups(replication_factor, input_group_size)
    return device_iterations * gradient_accumulation * groups


@dataclass(frozen=True)
class WeightGroups:
    """Groups of replicas, each with a value of its own for one parameter of the model.

    Attributes:
        name: of the parameter, whose first dimension on the host counts the groups.
        reads_all: whether the host reads one value a replica rather than one a group.
    """

    name: str
    group_type: CommGroupType
    group_size: int
    reads_all: bool

    def of_replica(self, num_replicas: int) -> tuple[int, ...]:
        """Returns for each replica the number of its group."""
        return group_of_replica(self.group_type, self.group_size, num_replicas)


@dataclass(frozen=True)
class ShardingConfig:
    """From how many elements on a tensor is cut over the replicas; `None` stands for never."""

    weight: int | None = None
    optimizer: int | None = None
    accumulator: int | None = None
    activation: int | None = None


class CastRule(Enum):
    """What an operation does with its floating-point arguments in a region of `autocast`."""

    FP16 = "fp16"
    FP32 = "fp32"
    PROMOTE = "promote"  # They take the widest type among them.
    DEMOTE = "demote"  # They take the narrowest.


@dataclass(frozen=True)
class CompileConfig:
    """Everything that decides what is compiled; counts are at least 1.

    Attributes:
        recomputation: as the user asked for; `None` leaves it to the compiler.
        host_recomputation: what of that the engine does.
        max_guarded_programs: how many programs a model may store, each for other values of inputs
            that forward reads; with 0 nothing may be read.
        cast_rules: of regions of `autocast`, by the bare name of a function or a class of modules.
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
    # Not compared: what the rules did is seen in the operations.
    cast_rules: Mapping[str, CastRule] = field(default_factory=dict, compare=False)

    @property
    def is_distributed(self) -> bool:
        """Whether replicas of other processes train the same weights."""
        return self.is_training and self.num_processes > 1

    @property
    def num_sharers(self) -> int:
        """How many replicas share out a tensor that is cut: those of all processes in training."""
        return self.replication_factor * (self.num_processes if self.is_training else 1)

    @property
    def num_input_groups(self) -> int:
        """How many different input blocks the replicas read in one micro-batch."""
        return num_input_groups(self.replication_factor, self.input_group_size)

    @property
    def num_micro_batches(self) -> int:
        """How many micro-batches a window has: an update in training, a call in inference."""
        return self.gradient_accumulation if self.is_training else self.device_iterations

    @property
    def batch_factor(self) -> int:
        """By what the rows of an input are divided to give the rows of a micro-batch."""
        return batches_per_step(
            self.device_iterations,
            self.gradient_accumulation,
            self.replication_factor,
            self.input_group_size,
        )
