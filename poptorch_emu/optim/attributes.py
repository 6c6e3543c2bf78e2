"""Notices attributes of an optimiser that appeared after compilation and can have no effect."""

from __future__ import annotations

import logging

import torch

from poptorch_emu.log import logger
from poptorch_emu.optim.kind import optimizer_kind

_STRUCTURE = {"defaults", "state", "param_groups", "variable_attrs"}
_BOOKKEEPING = {"ipu_state_is_dirty", "host_state_is_dirty", "_state_dict", "state_dict"}
# What PyTorch's schedulers of the learning rate leave on an optimiser and in its groups.
_OF_SCHEDULERS = {"step", "_opt_called"}
_OF_SCHEDULERS_IN_GROUPS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}


class AttributeTracker:
    """Compares the attributes of later optimisers with those of a model's first one."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, is_relaxed: bool = False) -> None:
        """Takes all attributes of `optimizer` for expected.

        Args:
            optimizer: the first one of a model.
            is_relaxed: report at level DEBUG, not WARNING.
        """
        self._level = logging.DEBUG if is_relaxed else logging.WARNING
        self._defaults = set(optimizer.defaults)
        self._groups = {name for group in optimizer.param_groups for name in group}
        self._groups |= _OF_SCHEDULERS_IN_GROUPS
        self._object = set(vars(optimizer)) | _STRUCTURE | _BOOKKEEPING | _OF_SCHEDULERS
        self._reported: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Reports the attributes that `optimizer` has beyond the expected, each message once."""
        kind = optimizer_kind(optimizer).name
        unexpected = {
            f"default group variable in {kind} optimizer": set(optimizer.defaults) - self._defaults,
            f"optimizer attribute in {kind} optimizer": set(vars(optimizer)) - self._object,
        }
        for index, group in enumerate(optimizer.param_groups):
            unexpected[f"group {index} attribute in {kind} optimizer"] = set(group) - self._groups
        for where, names in unexpected.items():
            message = f"Ignoring unexpected {where}: {sorted(names)}"
            if names and message not in self._reported:
                self._reported.add(message)
                logger.log(self._level, "%s", message)
