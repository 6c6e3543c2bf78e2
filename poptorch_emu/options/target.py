"""Targets of a compilation: the virtual system, the IPU Model, or no device."""

from __future__ import annotations

from poptorch_emu.config import TargetKind
from poptorch_emu.enums import ConnectionType
from poptorch_emu.errors import compiler_error
from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.machine.system import current_system
from poptorch_emu.options.options import Options
from poptorch_emu.runtime.devices import ipu_model_version, is_ipu_model_asked

# Version of IPUs if there is no system, as with `useOfflineIpuTarget`.
_DEFAULT_VERSION = 2


def target_of(options: Options) -> TargetKind:
    """Returns the target that `options` and the environment select.

    Raises:
        Error: options contradict each other, or an environment variable is invalid.
    """
    is_model = options("use_model") if options.exists("use_model") else is_ipu_model_asked()
    is_offline = options.connection_type == ConnectionType.Never
    if is_model:
        ipu_model_version()
        _check_ipu_model(options, is_offline)
        return TargetKind.IPU_MODEL
    if is_offline and options.exists("ipu_id"):
        raise compiler_error(
            "Offline compilation targeting a specific id not supported: leave out "
            f"Options.useIpuId({options('ipu_id')}) or choose another connection type."
        )
    return TargetKind.OFFLINE if is_offline else TargetKind.HARDWARE


def ipu_version_of(options: Options, target: TargetKind) -> int:
    """Returns the version of the IPUs that a model is compiled for: 1, 2 or 21.

    Raises:
        Error: the version, or the name of the system in the environment, is unknown.
    """
    if target is TargetKind.IPU_MODEL:
        return ipu_model_version()
    if target is TargetKind.OFFLINE and options.exists("ipu_version"):
        version: int = options("ipu_version")
        if version not in IPU_OF_VERSION:
            raise compiler_error(
                f"There is no IPU of version {version!r}: useOfflineIpuTarget takes one of "
                f"{', '.join(map(str, IPU_OF_VERSION))}."
            )
        return version
    return current_system().version or _DEFAULT_VERSION


def _check_ipu_model(options: Options, is_offline: bool) -> None:
    if is_offline:
        raise compiler_error(
            "ConnectionType.Never / poptorch.Options.useOfflineIpuTarget not supported for the IPU "
            "model. Call useIpuModel(False), or choose another connection type."
        )
    if options._Popart.options.get("instrumentWithHardwareCycleCounter"):
        raise compiler_error(
            "Cycle count logging is only supported on actual IPU hardware. Call "
            "logCycleCount(False), or useIpuModel(False) to run on the virtual system."
        )
