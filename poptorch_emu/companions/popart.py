"""`popart`: the names of PopTorch's lower layer that PopTorch programs use.

The module has the enumerations that `Options._Popart.set` takes, the version, and the exceptions.
The rest of the original builds graphs without PyTorch and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from poptorch_emu.enums import ReductionType
from poptorch_emu.errors import Error
from poptorch_emu.log import logger, set_popart_log_level
from poptorch_emu.version import __version__

# The PopTorch release whose behaviour this package reproduces.
_REFERENCE_VERSION = "3.4.0"

__all__ = [
    "AccumulateOuterFragmentSchedule",
    "AdamMode",
    "AnchorReturnType",
    "AnchorReturnTypeId",
    "BatchSerializationBatchSchedule",
    "CommGroup",
    "CommGroupType",
    "DeviceConnectionType",
    "DeviceType",
    "OutOfMemoryError",
    "OutOfMemoryException",
    "RecomputationType",
    "ReductionType",
    "ReplicatedTensorSharding",
    "SubgraphCopyingStrategy",
    "SyntheticDataMode",
    "VirtualGraphMode",
    "WeightDecayMode",
    "exception",
    "getLogger",
    "popart_exception",
    "reservedGradientPrefix",
    "versionString",
]


class AccumulateOuterFragmentSchedule(IntEnum):
    """Order of the operations after an accumulation (accepted)."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class AdamMode(IntEnum):
    """Update rules of the Adam family (accepted)."""

    Adam = 0
    AdamNoBias = 1
    AdaMax = 2
    Lamb = 3
    LambNoBias = 4


class AnchorReturnTypeId(IntEnum):
    """Selection of the values of a tensor that the host receives (accepted)."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3


class BatchSerializationBatchSchedule(IntEnum):
    """Order of the parts of a serialised batch (accepted)."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class DeviceConnectionType(IntEnum):
    """Time at which a program attaches to a device (accepted)."""

    Always = 0
    OnDemand = 1
    Never = 2


class DeviceType(IntEnum):
    """Kinds of devices (accepted)."""

    IpuModel = 0
    Cpu = 1
    Ipu = 2
    OfflineIpu = 3
    Sim = 4


class ReplicatedTensorSharding(IntEnum):
    """Whether replicas each hold a part of a tensor (accepted)."""

    Off = 0
    On = 1


class SubgraphCopyingStrategy(IntEnum):
    """Time at which the inputs of a subgraph are copied (accepted)."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyntheticDataMode(IntEnum):
    """Synthetic data in place of the host's, as in `Options.enableSyntheticData` (accepted)."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


class VirtualGraphMode(IntEnum):
    """The part of the system that places operations on IPUs (accepted)."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class WeightDecayMode(IntEnum):
    """The place of the weight decay in the update rule (accepted)."""

    Decay = 0
    L2Regularization = 1


# A class body cannot name a member None; programs read it as RecomputationType["None"].
RecomputationType = IntEnum(
    "RecomputationType",
    {"None": 0, "Standard": 1, "NormOnly": 2, "Pipeline": 3, "RecomputeAll": 4},
    module=__name__,
)
RecomputationType.__doc__ = "The activations that backward recomputes (exact)."
CommGroupType = IntEnum(
    "CommGroupType",
    {"All": 0, "Consecutive": 1, "Orthogonal": 2, "None": 3},
    module=__name__,
)
CommGroupType.__doc__ = "The replicas that form a group (exact)."


@dataclass(frozen=True)
class CommGroup:
    """A grouping of replicas (accepted)."""

    type: CommGroupType = CommGroupType["All"]
    replicaGroupSize: int = 0


class AnchorReturnType:
    """Selection of the values of a tensor that the host receives, with a period (accepted)."""

    def __init__(self, name: str, period: int = 1) -> None:
        """Stores the `AnchorReturnTypeId` and the period; raises `KeyError` if unknown."""
        self._id = AnchorReturnTypeId[name]
        self._period = period

    def id(self) -> AnchorReturnTypeId:
        """Returns the selection."""
        return self._id

    def rp(self) -> int:
        """Returns the period: one value in this many is received."""
        return self._period


# One class under the names of all releases: `except popart.popart_exception` catches our errors.
popart_exception = exception = Error


class OutOfMemoryException(Error):
    """Raised if a model needs more memory than the device has (accepted)."""


OutOfMemoryError = OutOfMemoryException


class _Logger:
    def setLevel(self, level: str) -> None:
        set_popart_log_level(level)

    def debug(self, message: str) -> None:
        logger.debug(message)

    def info(self, message: str) -> None:
        logger.info(message)

    def warn(self, message: str) -> None:
        logger.warning(message)

    def error(self, message: str) -> None:
        logger.error(message)


def getLogger(name: str = "all") -> _Logger:
    """Returns a logger that writes to PopTorch's log and ignores its level (accepted)."""
    return _Logger()


def versionString() -> str:
    """Returns the version of the reference and of this package (exact)."""
    return f"{_REFERENCE_VERSION}+poptorch.emu.{__version__}"


def reservedGradientPrefix() -> str:
    """Returns the prefix of the names of gradients (exact)."""
    return "Gradient___"


def __getattr__(name: str) -> NoReturn:
    """Refuses names that only programs without PyTorch use."""
    hint = " To ask about devices, use poptorch.ipuHardwareIsAvailable." if "Device" in name else ""
    raise AttributeError(
        f"module 'popart' has no attribute {name!r}: poptorch_emu has only those names of popart "
        "that PopTorch programs use. Express the model as a torch.nn.Module and wrap it with "
        f"poptorch.{hint}"
    )
