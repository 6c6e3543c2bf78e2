"""The locks of devices, and of the host's tensors: one thread uses them, while the others wait.

A thread that holds the lock of a device may ask for that of the host's tensors, and never the other
way round. So a thread that holds the latter reads the weights that the host has, and asks no device
for newer ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from poptorch_emu.turns import TurnLock

# A thread holds this lock while it moves weights between a device and the host, or reads the
# weights of a whole model. All weights that it sees are therefore those of one step.
HOST_TENSORS = TurnLock()


class DeviceLock(TurnLock):
    """The lock of a device; a deep copy of its owner has its own.

    Trainers of the same tensors have joined locks: a call of one asks the others for the newest
    values, and so on, so two locks could wait for one another.
    """

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
        with self.device_lock:
            return method(self, *args, **kwargs)

    return locked
