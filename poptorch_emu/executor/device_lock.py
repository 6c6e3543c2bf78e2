"""The lock of a device, which one thread holds while others wait."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

# Common lock of all trainers that share tensors. A call of one trainer reads the newest values of
# the others, and the other way round, so with two locks they could wait for each other.
_COMMON_LOCK = threading.RLock()


class DeviceLock:
    """A lock that one thread holds; a deep copy of its owner has a new lock.

    Attributes:
        lock: lock that the thread that uses the device holds.
    """

    def __init__(self) -> None:
        """Makes a lock of its own."""
        self.lock = threading.RLock()

    def share(self) -> None:
        """Replaces the lock by the common lock of trainers that share tensors."""
        self.lock = _COMMON_LOCK

    def __deepcopy__(self, _: Any) -> DeviceLock:
        return DeviceLock()


class LockOwner(Protocol):
    """An object with a device that threads use in turn."""

    device_lock: DeviceLock


Self = TypeVar("Self", bound=LockOwner)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def one_at_a_time(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Result]:
    """Makes a thread wait while another thread runs such a method, for example in a server."""

    @functools.wraps(method)
    def locked(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with self.device_lock.lock:
            return method(self, *args, **kwargs)

    return locked
