"""Which programs hold IPUs: those that share variables take turns, and others lend theirs."""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.runtime import devices

_users: weakref.WeakSet[DeviceUser] = weakref.WeakSet()
_clock = itertools.count(1)


class DeviceUser(ABC):
    """A program that holds IPUs from its first run on, until another one needs them."""

    def __init__(self, variables: Iterable[Any]) -> None:
        """Takes the variables of Keras that are on the device meanwhile."""
        self._variables = {id(variable) for variable in variables}
        self._last_use = 0
        self._in_use = threading.RLock()
        _users.add(self)

    @abstractmethod
    def detach(self) -> bool:
        """Gives the IPUs back, if it has any; what was learnt comes home first.

        Returns:
            Whether it had.
        """

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keeps the IPUs while this runs.

        Programs that use one of these variables give theirs back before. If no IPUs are free, so
        does the one that has not run for the longest time.
        """
        for other in list(_users):
            if other is not self and not self._variables.isdisjoint(other._variables):
                other.detach()
        with self._in_use:
            self._last_use = next(_clock)
            yield


def give_back(executor: PoplarExecutor) -> bool:
    """Gives the IPUs of an executor back, if it has any, and returns whether it had."""
    if not (executor.isCompiled() and executor._is_attached):
        return False
    executor.detachFromDevice()
    return True


def _give_back_oldest() -> bool:
    """Makes the program give its IPUs back that has not run for the longest time.

    Returns:
        Whether there was one that does not run.
    """
    for user in sorted(_users, key=lambda user: user._last_use):
        if user._in_use.acquire(blocking=False):
            try:
                if user.detach():
                    return True
            finally:
                user._in_use.release()
    return False


devices.add_lender(_give_back_oldest)
