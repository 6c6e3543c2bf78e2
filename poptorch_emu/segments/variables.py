"""The variables of a program, as values: parameters, buffers and states of the optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class VariableInfo:
    """One variable on the device.

    Attributes:
        index: its number in the program.
        name: dotted name of the parameter or buffer, or "<state>___<parameter>".
        initial: the value of a new optimiser state; parameters and buffers have none.
        is_per_replica: whether each replica has its own.
        group_of_replica: the groups that share a copy, unless each replica has its own; empty for
            one copy.
        reads_all: whether the host reads one value a replica, rather than one a group.
        is_sharded: whether each replica holds a part.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_per_replica: bool
    initial: float | None = None
    group_of_replica: tuple[int, ...] = ()
    reads_all: bool = False
    is_sharded: bool = False

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def is_state(self) -> bool:
        """Whether this is a state of the optimiser."""
        return self.initial is not None

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first replica of each group, in order of the groups."""
        groups = self.group_of_replica or (0,)
        return tuple(groups.index(group) for group in range(1 + max(groups)))
