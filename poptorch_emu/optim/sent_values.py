"""Record of the hyper-parameters that were sent to the device last."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

import torch

from poptorch_emu.runtime import guards


class SentValues:
    """The hyper-parameters that were sent to the device last."""

    def __init__(self) -> None:
        self._groups: list[dict[str, Any]] = []
        # The optimiser's own groups, and the values in columns, so that a comparison is fast.
        self._own_groups: list[dict[str, Any]] = []
        self._holders: list[Mapping[str, object]] = []
        self._names: list[str] = []
        self._held: list[object] = []

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Records that the device has the values of `optimizer`."""
        self._groups = _values(optimizer)
        self._own_groups = list(optimizer.param_groups)
        pairs = zip(self._groups, self._own_groups, strict=True)
        self._holders = [group for values, group in pairs for _ in values]
        self._names = [name for values in self._groups for name in values]
        self._held = [value for values in self._groups for value in values.values()]

    def changed(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Returns the names of the values that changed since then."""
        if self._are_as_they_were(optimizer.param_groups):
            return []
        pairs = zip(self._groups, optimizer.param_groups, strict=False)
        return sorted(
            {
                name
                for before, now in pairs
                for name, value in before.items()
                if now.get(name) is not value and _is_plain(now.get(name)) and now[name] != value
            }
        )

    def _are_as_they_were(self, groups: list[dict[str, Any]]) -> bool:
        """Returns whether the groups and all values are the same objects, compared by guards."""
        are_same = len(groups) == len(self._own_groups) and all(map(is_, groups, self._own_groups))
        return are_same and guards.are_held(self._holders, self._names, self._held)


def _values(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if _is_plain(value)}
        for group in optimizer.param_groups
    ]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))
