"""Names that programs use from `poptorch.poptorch_core`, which was PopTorch's C++ module.

They concern errors, options, logging and the trace. Functions that drove PopTorch's compiler and
devices have other places here; reading one raises an error that names its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import Enum
from typing import Any, NoReturn

import torch

from poptorch_emu.errors import Error, RecoverableError, UnrecoverableError, compiler_error
from poptorch_emu.executor.saving import importPoptorchMetadataFromFile
from poptorch_emu.log import set_log_level, set_popart_log_level
from poptorch_emu.options.popart import validate_options
from poptorch_emu.runtime.devices import hardware_version
from poptorch_emu.torch_versions import propagate_shapes_on_graph
from poptorch_emu.trace.places.blocks import is_tracing

__all__ = [
    "CompilerOptions",
    "Error",
    "RecoverableError",
    "TestErrorType",
    "TracingMode",
    "UnrecoverableError",
    "_throwTestError",
    "_validateOptions",
    "getIpuTensorId",
    "ipuHardwareVersion",
    "importPoptorchMetadataFromFile",
    "isCompilingWithDispatcher",
    "poptorchAtExit",
    "propagateInputShapes",
    "setLogLevel",
    "setPopartLogLevel",
]

_THE_WRAPPER = "the object that poptorch.trainingModel or poptorch.inferenceModel returns"
_THE_TRACER = "tracing, which the wrapper does by itself at its first call or in compile()"
# Function of PopTorch's C++ module -> its replacement here, as error messages name it.
_ELSEWHERE = {
    **dict.fromkeys(
        (
            "attachToDevice",
            "copyNamedBuffersToDevice_impl",
            "copyWeightsToDevice_impl",
            "copyWeightsToHost_impl",
            "cycleCount",
            "detachFromDevice",
            "execute",
            "getRandomSeed",
            "getRngState",
            "getTimestamps",
            "isAttachedToDevice",
            "loadEngineAndConnectStreams",
            "readOptimizerState",
            "saveExecutableToFile",
            "setRngState",
            "updateOptimizers",
            "writeOptimizerState",
            "_getTensorNames",
        ),
        _THE_WRAPPER,
    ),
    **dict.fromkeys(
        (
            "compileWithManualTracing",
            "createGraph",
            "destroyDispatcher",
            "endDispatch",
            "endOutputsMove",
            "endParametersMove",
            "finalizeGraph",
            "isGraphNondeterministic",
            "mapParamsToNames",
            "processDispatchAndImportExecutable",
            "setPerReplica",
            "startDispatch",
            "startOutputsMove",
            "startParametersMove",
            "_getPopartIR",
        ),
        _THE_TRACER,
    ),
    **dict.fromkeys(
        ("isAlreadyRegistered", "registerBuffersWithCallback", "registerCPUCallBack"),
        "poptorch.CPU",
    ),
    "appendPoptorchMetadataToFile": "poptorch.PoplarExecutor.save",
    "setCustomCodeletsPath": "not needed, because there are no codelets to compile",
}

_next_id = itertools.count(1)


class TestErrorType(Enum):
    """The error that `_throwTestError` raises; the value is its `type` (exact)."""

    Poptorch = "poptorch_cpp_error"
    Popart = "popart_exception"
    PopartInternal = "popart_internal_exception"
    Poplibs = "poplibs_exception"
    PoplarUnrecoverable = "poplar_unrecoverable_runtime_error"
    PoplarUnknown = "poplar_unknown_runtime_error"
    PoplarRecoverableFullReset = "poplar_recoverable_runtime_error"
    PoplarLinkError = "poplar_link_error"


class TracingMode(Enum):
    """Methods of capturing a model (accepted: each value selects the same one)."""

    PopART = 0


class CompilerOptions:
    """Options that PopTorch passes to its compiler (accepted).

    Attributes:
        source_location_excludes: parts of paths of files that error messages do not show.
    """

    def __init__(self) -> None:
        self.source_location_excludes: list[str] = []


def _throwTestError(kind: TestErrorType) -> None:
    is_recoverable = kind is TestErrorType.PoplarRecoverableFullReset
    raise compiler_error(
        f"This is the test error {kind.name}, raised because _throwTestError was called.",
        type=kind.value,
        recovery_action="FULL_RESET" if is_recoverable else "",
    )


def _validateOptions(options: dict[str, Any]) -> None:
    validate_options(options)


def isCompilingWithDispatcher() -> bool:
    """Returns whether a model is being traced (exact)."""
    return is_tracing()


def ipuHardwareVersion(num_ipus: int = 1) -> int:
    """Returns the version of the virtual system's IPUs (exact)."""
    return hardware_version(num_ipus)


def setLogLevel(level: int | str) -> None:
    """Sets the level of messages that are logged (exact); see `poptorch.setLogLevel`."""
    set_log_level(level)


def setPopartLogLevel(level: str) -> None:
    """Checks the name of a log level of PopART, which does not exist here (accepted)."""
    set_popart_log_level(level)


def getIpuTensorId(t: torch.Tensor) -> int:
    """Returns a number that a tensor on the IPU keeps for its life (exact).

    Raises:
        Error: the tensor is not on the IPU, where it can be only while `forward` is traced.
    """
    if t.device.type != "ipu":
        raise compiler_error(
            "You may only call getIpuTensorId on an IPU tensor, but this one is on "
            f"{t.device}. Call it in the forward of a wrapped model, where "
            "poptorch.isRunningOnIpu() is True."
        )
    return int(vars(t).setdefault("_poptorch_ipu_id", next(_next_id)))


def propagateInputShapes(graph: torch.Graph, inputs: Sequence[torch.Tensor]) -> None:
    """Sets the types of the values in a graph of `torch.jit`, from its inputs (exact).

    It serves programs that inspect graphs; nothing is compiled from such a graph here.

    Raises:
        Error: the number of inputs differs from that of the graph.
    """
    values = list(graph.inputs())
    if len(values) != len(inputs):
        raise compiler_error(
            f"The graph has {len(values)} inputs, but {len(inputs)} tensors were given. Pass one "
            "for each input, parameters included."
        )
    for value, tensor in zip(values, inputs, strict=True):
        value.inferTypeFrom(tensor)
    propagate_shapes_on_graph(graph)


def poptorchAtExit() -> None:
    """Does nothing: the engine is freed with the wrappers that own it (accepted)."""


def __getattr__(name: str) -> NoReturn:
    """Raises an error that names the replacement of a function of PopTorch's C++ module."""
    if name in _ELSEWHERE:
        raise AttributeError(
            f"poptorch_emu does not have poptorch_core.{name}, a function of PopTorch's C++ "
            f"layer. Its replacement is {_ELSEWHERE[name]}."
        )
    raise AttributeError(f"module 'poptorch.poptorch_core' has no attribute {name!r}")
