"""Which programs hold IPUs: those that share variables take turns."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

_users: weakref.WeakSet[DeviceUser] = weakref.WeakSet()


class DeviceUser(ABC):
    """A program that holds IPUs from its first run on, until another one needs them."""

    def __init__(self, variables: Iterable[Any]) -> None:
        """Takes the variables of Keras that are on the device meanwhile."""
        self._variables = {id(variable) for variable in variables}
        _users.add(self)

    @abstractmethod
    def detach(self) -> None:
        """Gives the IPUs back; what was learnt comes home first."""

    def take_device(self) -> None:
        """Makes those programs give IPUs back that use one of these variables."""
        for other in list(_users):
            if other is not self and not self._variables.isdisjoint(other._variables):
                other.detach()
