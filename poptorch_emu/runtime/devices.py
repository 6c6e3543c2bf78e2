"""The virtual system: its devices, their holders, and the search for free IPUs.

Devices are numbered as on a Pod: first each single IPU, then each aligned pair, then each four, and
so on. A device is free when all its IPUs are free. The system belongs to the process and is
independent of the programs on its devices.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache, partial

from poptorch_emu.environment import integer_of
from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.log import compiler_logger, logger
from poptorch_emu.machine.system import SYSTEM_VARIABLE, SYSTEMS, System, current_system
from poptorch_emu.troubleshooting import Topic

_WAIT_VARIABLE = "POPTORCH_WAIT_FOR_IPU"
_MODEL_VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
_MODEL_VERSION_VARIABLE = "POPTORCH_IPU_MODEL_VERSION"

# Source: PopTorch's device manager, which tries again after this time.
WAIT_INTERVAL_SECONDS = 15.0

_MODEL_VERSIONS = ("ipu1", "ipu2", "ipu21")


def is_ipu_model_asked() -> bool:
    """Returns whether the environment selects the IPU Model.

    Raises:
        Error: one of its variables is not an integer.
    """
    return any(integer_of(variable) != 0 for variable in _MODEL_VARIABLES)


def ipu_model_version() -> int:
    """Returns the IPU version of the IPU Model.

    Raises:
        Error: `POPTORCH_IPU_MODEL_VERSION` is not a known version.
    """
    version = os.environ.get(_MODEL_VERSION_VARIABLE, "ipu2")
    if version not in _MODEL_VERSIONS:
        raise compiler_error(
            "Invalid IPU model version. Valid versions: ipu1, ipu2, ipu21. "
            f"{_MODEL_VERSION_VARIABLE} is '{version}'."
        )
    return int(version.removeprefix("ipu"))


def is_hardware_available(num_ipus: int = 1) -> bool:
    """Returns whether the virtual system has a device of `num_ipus`, free or not (exact).

    The virtual system counts as the hardware. The result is false without a virtual system, and if
    the environment selects the IPU Model.
    """
    if is_ipu_model_asked():
        return False
    return any(len(device) == num_ipus for device in current_system().devices())


def hardware_version(num_ipus: int = 1) -> int:
    """Returns the version of the virtual system's IPUs: 1, 2 or 21 (exact).

    Raises:
        AssertionError: there is no virtual system with a device of `num_ipus`.
    """
    if not is_hardware_available(num_ipus):
        raise AssertionError(
            "No IPU hardware available on this system: the virtual system is "
            f"'{current_system().name}'. Choose another with {SYSTEM_VARIABLE}, and leave "
            f"{' and '.join(_MODEL_VARIABLES)} unset."
        )
    return current_system().version


class Device:
    """IPUs of the virtual system, held until `release` or until this object is freed."""

    def __init__(self, ipu_ids: range, release: Callable[[], None] = lambda: None) -> None:
        self.ipu_ids = ipu_ids
        self._finalizer = weakref.finalize(self, release)

    def release(self) -> None:
        """Releases the IPUs; further calls do nothing."""
        self._finalizer()


class _Manager:
    """The holders of the IPUs in the process's virtual system."""

    def __init__(self) -> None:
        self._busy: set[int] = set()
        self._lock = threading.RLock()

    def take(self, devices: list[range]) -> Device | None:
        """Returns the first of `devices` all of whose IPUs are free, or `None`."""
        with self._lock:
            for device in devices:
                if self._busy.isdisjoint(device):
                    self._busy.update(device)
                    return Device(device, partial(self._release, device))
        return None

    def _release(self, device: range) -> None:
        with self._lock:
            self._busy.difference_update(device)

    @property
    def num_busy(self) -> int:
        """Number of IPUs that are held."""
        return len(self._busy)


_manager = _Manager()
# Functions that release IPUs which are not in use, and return whether they released any.
_lenders: list[Callable[[], bool]] = []


def add_lender(give_back: Callable[[], bool]) -> None:
    """Registers a function that is called repeatedly for IPUs when none are free.

    Args:
        give_back: function that releases IPUs, and returns whether it released any.
    """
    _lenders.append(give_back)


def num_busy_ipus() -> int:
    """Returns how many IPUs of the virtual system are held now."""
    return _manager.num_busy


def acquire(num_ipus: int, ipu_id: int | None = None) -> Device:
    """Returns a device for a model that uses `num_ipus`; waits for it if the user asks for that.

    Args:
        num_ipus: number of IPUs of all replicas; a power of two unless a device is named.
        ipu_id: number of the requested device; `None` for any.

    Raises:
        Error: no device is free, none has this size, or the requested one is too small.
    """
    system = current_system()
    _tell_once(system.name)
    devices = system.devices()
    if ipu_id is not None:
        wanted = [_named_device(devices, ipu_id, num_ipus, system)]
    else:
        wanted = [device for device in devices if len(device) == num_ipus]
        if not wanted:
            raise _failure(num_ipus, f"it has {system.num_ipus}", system, Topic.TOO_MANY_IPUS)
    device = _manager.take(wanted)
    if device is None:
        gc.collect()  # An unreachable model may still hold IPUs.
        device = _manager.take(wanted)
    while device is None and any(give_back() for give_back in _lenders):
        device = _manager.take(wanted)
    while device is None and integer_of(_WAIT_VARIABLE) != 0:
        logger.info("Waiting for %d free IPU(s) of '%s'.", num_ipus, system.name)
        time.sleep(WAIT_INTERVAL_SECONDS)
        device = _manager.take(wanted)
    if device is None:
        state = f"{_manager.num_busy} of its {system.num_ipus} are in use"
        if ipu_id is not None:
            state += f", among them some of device {ipu_id}, which Options.useIpuId names"
        raise _failure(num_ipus, state, system, Topic.NO_FREE_IPU)
    return device


def _named_device(devices: list[range], ipu_id: int, num_ipus: int, system: System) -> range:
    if not 0 <= ipu_id < len(devices):
        raise compiler_error(
            f"Failed to acquire device {ipu_id} for {num_ipus} IPU(s): the virtual system "
            f"'{system.name}' has devices 0 to {len(devices) - 1}. Change Options.useIpuId; "
            f"{Topic.TOO_MANY_IPUS}"
        )
    device = devices[ipu_id]
    if len(device) < num_ipus:
        raise compiler_error(
            f"Expected at least replication factor * used IPUs = {num_ipus} IPUs, but device "
            f"{ipu_id} has {len(device)}. Name a larger one in Options.useIpuId, or none; "
            f"{Topic.TOO_MANY_IPUS}"
        )
    if len(device) > num_ipus:
        compiler_logger.warning(
            "Expected replication factor * used IPUs = %d, but device %d has %d IPUs: some of them "
            "will not be used.",
            num_ipus,
            ipu_id,
            len(device),
        )
    return device


def _failure(num_ipus: int, state: str, system: System, topic: Topic) -> Error:
    return compiler_error(
        f"Failed to acquire {num_ipus} IPU(s) of the virtual system '{system.name}': {state}. "
        "Detach or destroy another model (detachFromDevice(), destroy()), choose a larger system "
        f"with {SYSTEM_VARIABLE} ({', '.join(SYSTEMS)}), set {_WAIT_VARIABLE}=1 to wait, or run "
        f"without one: poptorch.Options().useIpuModel(True); {topic}"
    )


@cache
def _tell_once(name: str) -> None:
    """Logs, once in a process, that models run on a virtual system."""
    logger.info(
        "This is poptorch_emu: models run on this computer, on the virtual IPU system '%s'. Choose "
        "another with %s.",
        name,
        SYSTEM_VARIABLE,
    )
