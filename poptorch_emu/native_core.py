"""What programs reach for in `poptorch.poptorch_core`, which was PopTorch's C++ module.

Only the parts that concern errors, options and logging; the rest has other homes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from poptorch_emu.errors import Error, RecoverableError, UnrecoverableError, compiler_error
from poptorch_emu.log import set_log_level
from poptorch_emu.options.popart import validate_options
from poptorch_emu.saving import importPoptorchMetadataFromFile
from poptorch_emu.trace.blocks import is_tracing

__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "UnrecoverableError",
    "_throwTestError",
    "_validateOptions",
    "importPoptorchMetadataFromFile",
    "isCompilingWithDispatcher",
    "setLogLevel",
]


class TestErrorType(Enum):
    """Which error `_throwTestError` raises; the value is its `type`."""

    Poptorch = "poptorch_cpp_error"
    Popart = "popart_exception"
    PopartInternal = "popart_internal_exception"
    Poplibs = "poplibs_exception"
    PoplarUnrecoverable = "poplar_unrecoverable_runtime_error"
    PoplarUnknown = "poplar_unknown_runtime_error"
    PoplarRecoverableFullReset = "poplar_recoverable_runtime_error"
    PoplarLinkError = "poplar_link_error"


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


def setLogLevel(level: int | str) -> None:
    """Sets what is logged (exact); see `poptorch.setLogLevel`."""
    set_log_level(level)
