"""The public enumerations, in PopTorch's spelling and with its values.

Most are `IntEnum`: they compare equal to plain integers, and some options store the bare integer.
"""

from __future__ import annotations

from enum import Enum, EnumMeta, IntEnum
from typing import Any

from poptorch_emu.near_names import did_you_mean


class _Members(EnumMeta):
    """The class of enumerations that tell their members to who asks for one that is not there."""

    def __getattr__(cls, name: str) -> Any:
        # Up to Python 3.11 members are found here, too.
        if name.startswith("_"):
            raise AttributeError(name)
        if name in cls.__members__:
            return cls.__members__[name]
        raise AttributeError(
            f"{cls.__name__} has no member {name!r}. It has {', '.join(cls.__members__)}."
            f"{did_you_mean(name, cls.__members__)}"
        )


class NamedNumber(IntEnum, metaclass=_Members):
    """An integer that texts show by its name; which they would, depends on Python's version."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)


class MeanReductionStrategy(NamedNumber):
    """When a mean over accumulated gradients is divided (exact); see `Options.Training`."""

    Running = 0
    """Keep a running mean while accumulating."""
    Post = 1
    """Divide the sum at the end of the accumulation."""
    PostAndLoss = 2
    """Deprecated; refused when the options are validated."""


class DataLoaderMode(NamedNumber):
    """How a `DataLoader` fetches batches (exact)."""

    Sync = 0
    """In the calling process, when asked."""
    Async = 1
    """In a worker process, ahead of time."""
    AsyncRebatched = 2
    """As `Async`, in smaller batches that are joined afterwards, which loses fewer samples."""


class SharingStrategy(NamedNumber):
    """How the worker of an asynchronous `DataLoader` hands tensors over (exact)."""

    SharedMemory = 0
    """Through shared memory."""
    FileSystem = 1
    """Through files, where shared memory is too small."""
    Fork = 2
    """Through memory shared with a forked worker."""
    ForkServer = 3
    """Through memory shared with a worker forked from a server."""


class OutputMode(NamedNumber):
    """Which outputs of the micro-batches of one step reach the host (exact)."""

    Final = 0
    """Those of the last micro-batch."""
    EveryN = 1
    """Those of every n-th device iteration."""
    All = 2
    """Those of all micro-batches."""
    Sum = 3
    """Their sum."""
    Default = 4
    """`All` for inference, `Final` for training."""


class ConnectionType(NamedNumber):
    """When to attach to a device (accepted: a virtual device is always free)."""

    Always = 0
    """Before compilation."""
    OnDemand = 1
    """When the executable is loaded."""
    Never = 2
    """Not at all: compile only."""


class HalfFloatCastingBehavior(NamedNumber):
    """Names how mixed precision once was handled (accepted, deprecated)."""

    FloatDowncastToHalf = 0
    """Cast the float32 operand to float16."""
    HalfUpcastToFloat = 1
    """Cast the float16 operand to float32."""
    Default = 2
    """Leave the choice to the framework."""


class ReductionType(NamedNumber):
    """How values over micro-batches and replicas become one (exact)."""

    Sum = 0
    """Add them."""
    Mean = 1
    """Average them."""
    NoReduction = 2
    """Leave them apart."""


class SyncPattern(NamedNumber):
    """Which IPUs wait for each other at an external synchronisation (accepted)."""

    Full = 0
    """All IPUs."""
    SinglePipeline = 1
    """All IPUs of one pipeline."""
    ReplicaAndLadder = 2
    """All IPUs of one replica, and those of the same ladder."""


class MatMulSerializationMode(Enum, metaclass=_Members):
    """Along which axis `serializedMatMul` cuts the product (accepted)."""

    InputChannels = "input_channels"
    """The rows of the left operand."""
    ReducingDim = "reducing_dim"
    """The axis that is summed over."""
    OutputChannels = "output_channels"
    """The columns of the right operand."""
    Disabled = "none"
    """Do not cut."""


class Liveness(NamedNumber):
    """When tensors of a phased model leave the chip (accepted)."""

    AlwaysLive = 0
    """They stay on chip."""
    OffChipAfterFwd = 1
    """After the last forward phase."""
    OffChipAfterFwdNoOverlap = 2
    """After the last forward phase, without overlap of compute and copies."""
    OffChipAfterEachPhase = 3
    """After each phase."""


class OverlapMode(Enum, metaclass=_Members):
    """With what the transfer of an input or output overlaps (modelled)."""

    NoOverlap = "no_overlap"
    """With nothing."""
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    """With the compute of the accumulation loop."""
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
    """With the compute of the loop over device iterations."""


class AutoStage(NamedNumber):
    """How blocks become stages when the strategy names none (exact)."""

    SameAsIpu = 0
    """The stage is the block's IPU."""
    AutoIncrement = 1
    """Stages are numbered from 1 as blocks are met; 0 holds what comes before the first."""


class MultiConvPlanType(NamedNumber):
    """How the convolutions of a `MultiConv` share the chip (accepted)."""

    Parallel = 0
    """Side by side."""
    Serial = 1
    """One after the other."""


class CommGroupType(NamedNumber):
    """Which replicas form a group (exact)."""

    All = 0
    """All replicas are one group."""
    Consecutive = 1
    """Neighbours: (0, 1), (2, 3), ..."""
    Orthogonal = 2
    """Equally spaced: (0, 2), (1, 3), ..."""
    NoGrouping = 3
    """Each replica is its own group."""


class VariableRetrievalMode(NamedNumber):
    """Which copies of a variable that differs between groups the host reads (exact)."""

    OnePerGroup = 0
    """That of the first replica of each group."""
    AllReplicas = 2
    """Those of all replicas."""
