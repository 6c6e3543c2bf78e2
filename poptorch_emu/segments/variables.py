"""The variables of a program, as values: parameters, buffers and states of the optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class VariableInfo:
    """One variable on the device.

    Attributes:
        index: number of the variable in the program.
        name: dotted name of the parameter or buffer, or "<state>___<parameter>".
        shape: shape of the whole tensor.
        dtype: number type.
        is_per_replica: whether each replica has its own copy.
        initial: value of a new optimiser state; `None` for parameters and buffers.
        group_of_replica: group of each replica, whose members share a copy; empty if all replicas
            share one copy or each has its own.
        reads_all: whether the host reads the value of each replica, not only that of each group.
        is_sharded: whether each replica holds only a part.
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
        """Number of elements of the whole tensor."""
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
