"""Who uses a device now: one thread, while the others wait."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

# Of all who train tensors that others train, too: each call of one asks others for what they have
# learnt, and so on, so two turns could wait for one another.
_COMMON_LOCK = threading.RLock()


class Turn:
    """What one thread holds and the others wait for; a deep copy of the owner has its own.

    Attributes:
        lock: held by the thread that uses the device.
    """

    def __init__(self) -> None:
        """Starts with a lock that nobody else has."""
        self.lock = threading.RLock()

    def share(self) -> None:
        """Takes turns from now on with all others that share theirs."""
        self.lock = _COMMON_LOCK

    def __deepcopy__(self, _: Any) -> Turn:
        return Turn()


class Owner(Protocol):
    """Whoever has a turn."""

    turn: Turn


Self = TypeVar("Self", bound=Owner)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def one_at_a_time(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Result]:
    """Makes a thread wait while another one is in such a method, as servers' threads must."""

    @functools.wraps(method)
    def locked(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with self.turn.lock:
            return method(self, *args, **kwargs)

    return locked
