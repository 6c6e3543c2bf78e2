"""An optimiser as immutable values: its rule, its groups, and which values may change later."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

LOSS_SCALING = "loss_scaling"


class OptimizerKind(IntEnum):
    """Which rule; the names appear in messages."""

    SGD1 = 0
    SGD2 = 1
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8


@dataclass(frozen=True)
class Hyper:
    """A hyper-parameter; a constant one is compiled into the program."""

    value: float
    is_constant: bool


@dataclass(frozen=True)
class GroupConfig:
    """The hyper-parameters of one group, by name."""

    hypers: tuple[tuple[str, Hyper], ...]

    def __getitem__(self, name: str) -> Hyper:
        """Returns the hyper-parameter `name`."""
        return dict(self.hypers)[name]

    def is_constant_zero(self, name: str) -> bool:
        """Returns whether `name` is compiled in as 0."""
        return self[name].is_constant and self[name].value == 0


@dataclass(frozen=True)
class OptimizerConfig:
    """Everything a compilation needs to know of an optimiser.

    Attributes:
        groups: first the defaults, for parameters in no group, then the parameter groups.
        group_of_parameter: index into `groups` of each parameter, in the order of the model.
    """

    kind: OptimizerKind
    groups: tuple[GroupConfig, ...]
    group_of_parameter: tuple[int, ...]
    loss_scaling: Hyper = Hyper(1.0, True)
    accum_type: torch.dtype = torch.float32
    first_order_type: torch.dtype = torch.float32
    second_order_type: torch.dtype = torch.float32
    velocity_type: torch.dtype = torch.float32
    max_grad_norm: float = float("inf")
    uses_tf_variant: bool = False
