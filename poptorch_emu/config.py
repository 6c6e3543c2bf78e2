"""What one compilation is asked to do, as immutable values.

`options/freeze.py` makes a `CompileConfig` from the user's `Options`; every floor below reads only
this. It knows neither `Options` nor tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from poptorch_emu.enums import AutoStage, CommGroupType, OutputMode, ReductionType


class StrategyKind(Enum):
    """How blocks share the IPUs."""

    PIPELINED = "pipelined"
    SHARDED = "sharded"
    SERIAL_PHASED = "serial_phased"
    PARALLEL_PHASED = "parallel_phased"


@dataclass(frozen=True)
class StageConfig:
    """One stage the user named: its blocks and, where given, its IPU and phase."""

    block_ids: tuple[str, ...]
    ipu: int | None = None
    phase: int = 0


@dataclass(frozen=True)
class StrategyConfig:
    """The execution strategy: explicit `stages`, or none and a rule that makes them."""

    kind: StrategyKind = StrategyKind.PIPELINED
    stages: tuple[StageConfig, ...] = ()
    auto_stage: AutoStage | None = AutoStage.SameAsIpu

    @property
    def is_automatic(self) -> bool:
        """Whether stages are made from the blocks as they are met."""
        return self.auto_stage is not None


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


@dataclass(frozen=True)
class CompileConfig:
    """Everything that decides what is compiled; counts are at least 1."""

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
    broadcast_buffers: bool = True
    target: TargetKind = TargetKind.HARDWARE
    ipu_id: int | None = None
    updatable_buffers: tuple[str, ...] = ()
    max_repeat_logs: int = 4
    auto_round_num_ipus: bool = False
    random_seed: int | None = None
    strategy: StrategyConfig = StrategyConfig()
    anchors: tuple[AnchorConfig, ...] = ()
    num_processes: int = 1
    checks_floating_point: bool = False
    cache_dir: str | None = None
    profile_dir: str | None = None
    model_name: str | None = None
    shows_progress_bar: bool = True
    names_modules: bool = True

    @property
    def num_input_groups(self) -> int:
        """How many different input blocks the replicas read in one micro-batch."""
        return self.replication_factor // self.input_group_size

    @property
    def batch_factor(self) -> int:
        """By what the rows of an input are divided to give the rows of a micro-batch."""
        return self.device_iterations * self.gradient_accumulation * self.num_input_groups
