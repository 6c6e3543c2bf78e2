"""The public enumerations, in PopTorch's spelling and with its values.

Most are `IntEnum`, because they must compare equal to integers: some options store the integer.
"""

from __future__ import annotations

from enum import Enum, EnumMeta, IntEnum
from typing import Any

from poptorch_emu.near_names import did_you_mean


class _Members(EnumMeta):
    """Metaclass of enumerations whose error for an unknown member lists the members."""

    def __getattr__(cls, name: str) -> Any:
        # Python up to 3.11 looks up members here, too.
        if name.startswith("_"):
            raise AttributeError(name)
        if name in cls.__members__:
            return cls.__members__[name]
        raise AttributeError(
            f"{cls.__name__} has no member {name!r}. It has {', '.join(cls.__members__)}."
            f"{did_you_mean(name, cls.__members__)}"
        )


class NamedNumber(IntEnum, metaclass=_Members):
    """An integer that is shown by its name; Python's own text differs between its versions."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)


class MeanReductionStrategy(NamedNumber):
    """Time at which a mean of accumulated gradients is divided (exact); see `Options.Training`."""

    Running = 0
    """Keep a running mean during accumulation."""
    Post = 1
    """Divide the sum at the end of the accumulation."""
    PostAndLoss = 2
    """Deprecated; refused when the options are validated."""


class DataLoaderMode(NamedNumber):
    """Ways for a `DataLoader` to fetch batches (exact)."""

    Sync = 0
    """Fetch a batch in the calling process when it is requested."""
    Async = 1
    """Fetch batches ahead of time in a worker process."""
    AsyncRebatched = 2
    """Like `Async`, but fetch smaller batches and join them, which drops fewer samples."""


class SharingStrategy(NamedNumber):
    """Ways for the worker of an asynchronous `DataLoader` to pass tensors on (exact)."""

    SharedMemory = 0
    """Pass tensors through shared memory."""
    FileSystem = 1
    """Pass tensors through files, for example if shared memory is too small."""
    Fork = 2
    """Pass tensors through memory shared with a forked worker."""
    ForkServer = 3
    """Pass tensors through memory shared with a worker that was forked from a server."""


class OutputMode(NamedNumber):
    """The outputs of a step's micro-batches that reach the host (exact)."""

    Final = 0
    """Return the outputs of the last micro-batch."""
    EveryN = 1
    """Return the outputs of every n-th device iteration."""
    All = 2
    """Return the outputs of all micro-batches."""
    Sum = 3
    """Return the sum of the outputs."""
    Default = 4
    """Use `All` for inference and `Final` for training."""


class ConnectionType(NamedNumber):
    """Time at which a model attaches to a device (accepted: a virtual device is always free)."""

    Always = 0
    """Attach before compilation."""
    OnDemand = 1
    """Attach when the executable is loaded."""
    Never = 2
    """Never attach, only compile."""


class HalfFloatCastingBehavior(NamedNumber):
    """Earlier treatments of mixed precision (accepted, deprecated)."""

    FloatDowncastToHalf = 0
    """Cast the float32 operand to float16."""
    HalfUpcastToFloat = 1
    """Cast the float16 operand to float32."""
    Default = 2
    """Leave the choice to the framework."""


class ReductionType(NamedNumber):
    """The reduction of values over micro-batches and replicas (exact)."""

    Sum = 0
    """Add them."""
    Mean = 1
    """Average them."""
    NoReduction = 2
    """Keep the values separate."""


class SyncPattern(NamedNumber):
    """The IPUs that wait for each other at an external synchronisation (accepted)."""

    Full = 0
    """All IPUs."""
    SinglePipeline = 1
    """All IPUs of one pipeline."""
    ReplicaAndLadder = 2
    """All IPUs of one replica, and those of the same ladder."""


class MatMulSerializationMode(Enum, metaclass=_Members):
    """The axis along which `serializedMatMul` cuts the product (accepted)."""

    InputChannels = "input_channels"
    """The rows of the left operand."""
    ReducingDim = "reducing_dim"
    """The axis that is summed over."""
    OutputChannels = "output_channels"
    """The columns of the right operand."""
    Disabled = "none"
    """Do not cut."""


class Liveness(NamedNumber):
    """Time at which tensors of a phased model leave the chip (accepted)."""

    AlwaysLive = 0
    """Keep tensors on chip."""
    OffChipAfterFwd = 1
    """Move tensors after the last forward phase."""
    OffChipAfterFwdNoOverlap = 2
    """Move tensors after the last forward phase, without overlap of compute and copies."""
    OffChipAfterEachPhase = 3
    """Move tensors after each phase."""


class OverlapMode(Enum, metaclass=_Members):
    """Computation during which an input or output is transferred (modelled)."""

    NoOverlap = "no_overlap"
    """Do not overlap the transfer."""
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    """Overlap the transfer with the compute of the accumulation loop."""
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
    """Overlap the transfer with the compute of the loop over device iterations."""


class AutoStage(NamedNumber):
    """The rule that turns blocks into stages if the strategy names none (exact)."""

    SameAsIpu = 0
    """Use the block's IPU as its stage."""
    AutoIncrement = 1
    """Number stages from 1 in order of the blocks; 0 holds operations before the first block."""


class MultiConvPlanType(NamedNumber):
    """Ways for the convolutions of a `MultiConv` to share the chip (accepted)."""

    Parallel = 0
    """Run the convolutions at the same time."""
    Serial = 1
    """Run the convolutions one after another."""


class CommGroupType(NamedNumber):
    """The replicas that form a group (exact)."""

    All = 0
    """Put all replicas in one group."""
    Consecutive = 1
    """Group neighbours: (0, 1), (2, 3), ..."""
    Orthogonal = 2
    """Group equally spaced replicas: (0, 2), (1, 3), ..."""
    NoGrouping = 3
    """Make each replica its own group."""


class VariableRetrievalMode(NamedNumber):
    """The copies of a variable that the host reads if groups have different values (exact)."""

    OnePerGroup = 0
    """Read the copy of the first replica of each group."""
    AllReplicas = 2
    """Read the copies of all replicas."""
