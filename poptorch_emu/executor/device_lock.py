"""The lock of a device: one thread uses it, while the others wait."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

# Of all trainers of tensors that others train, too: a call of one asks the others for the newest
# values, and so on, so two locks could wait for one another.
_COMMON_LOCK = threading.RLock()


class DeviceLock:
    """What one thread holds and the others wait for; a deep copy of its owner has its own.

    Attributes:
        lock: held by the thread that uses the device.
    """

    def __init__(self) -> None:
        """Starts with a lock that nobody else has."""
        self.lock = threading.RLock()

    def share(self) -> None:
        """Uses from now on the one lock of all that share theirs."""
        self.lock = _COMMON_LOCK

    def __deepcopy__(self, _: Any) -> DeviceLock:
        return DeviceLock()


class LockOwner(Protocol):
    """What has a device that threads take turns at."""

    device_lock: DeviceLock


Self = TypeVar("Self", bound=LockOwner)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def one_at_a_time(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Result]:
    """Makes a thread wait while another one is in such a method, as servers' threads must."""

    @functools.wraps(method)
    def locked(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with self.device_lock.lock:
            return method(self, *args, **kwargs)

    return locked
