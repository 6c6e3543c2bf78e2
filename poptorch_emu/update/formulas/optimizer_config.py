"""An optimiser as immutable values: its rule, its groups, and the values that may change later.

The front end builds these values from optimiser objects, which this file does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from poptorch_emu.update.formulas.loss_scale import LossScaleRule

LOSS_SCALING = "loss_scaling"


class OptimizerKind(IntEnum):
    """The kind of rule. Names and numbers are PopTorch's; messages show the names."""

    SGD1 = 0
    """SGD whose velocity doubles as gradient accumulator (`use_combined_accum=True`)."""
    SGD2 = 1
    """SGD with a velocity of its own."""
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8

    @property
    def is_sgd(self) -> bool:
        """Whether this is SGD, with either accumulator."""
        return self in (OptimizerKind.SGD1, OptimizerKind.SGD2)

    @property
    def is_rmsprop(self) -> bool:
        """Whether this is RMSprop, plain or centered."""
        return self in (OptimizerKind.RMSPROP, OptimizerKind.RMSPROP_CENTERED)

    @property
    def is_lamb(self) -> bool:
        """Whether this is LAMB, with or without correction of bias."""
        return self in (OptimizerKind.LAMB, OptimizerKind.LAMB_NO_BIAS)


_SGD_HYPERS = ("dampening", "lr", "momentum", "nesterov", "weight_decay")
_ADAM_HYPERS = ("beta1", "beta2", "eps", "lr", "weight_decay")
_RMSPROP_HYPERS = ("alpha", "eps", "lr", "momentum", "weight_decay")
_LAMB_HYPERS = ("beta1", "beta2", "eps", "lr", "max_weight_norm", "weight_decay")

# The hyper-parameters of each rule, sorted.
HYPERS: dict[OptimizerKind, tuple[str, ...]] = {
    OptimizerKind.SGD1: (*_SGD_HYPERS[:4], "velocity_scaling", "weight_decay"),
    OptimizerKind.SGD2: _SGD_HYPERS,
    OptimizerKind.ADAM: _ADAM_HYPERS,
    OptimizerKind.ADAMW: _ADAM_HYPERS,
    OptimizerKind.ADAMW_NO_BIAS: _ADAM_HYPERS,
    OptimizerKind.RMSPROP: _RMSPROP_HYPERS,
    OptimizerKind.RMSPROP_CENTERED: _RMSPROP_HYPERS,
    OptimizerKind.LAMB: _LAMB_HYPERS,
    OptimizerKind.LAMB_NO_BIAS: _LAMB_HYPERS,
}


@dataclass(frozen=True)
class Hyper:
    """A hyper-parameter. A constant one is compiled into the program."""

    value: float
    is_constant: bool


@dataclass(frozen=True)
class GroupConfig:
    """The hyper-parameters of one group, sorted by name.

    `betas` is split in `beta1` and `beta2`; `nesterov` is 0 or 1.
    """

    hypers: tuple[tuple[str, Hyper], ...]

    def __getitem__(self, name: str) -> Hyper:
        """Returns the hyper-parameter `name`."""
        return dict(self.hypers)[name]

    def is_constant_zero(self, name: str) -> bool:
        """Returns whether `name` is compiled in as 0."""
        return self[name] == Hyper(0.0, is_constant=True)


@dataclass(frozen=True)
class OptimizerConfig:
    """The properties of an optimiser that a compilation needs.

    Attributes:
        kind: rule of the optimiser.
        groups: the defaults, for parameters in no group, then the parameter groups.
        group_of_parameter: index into `groups` of each parameter, in the order of the model.
        loss_scaling: factor of the gradients before they are accumulated.
        loss_scale_rule: rule of a further, automatic factor; `None` without one.
        accum_type: type of the accumulated gradient.
        first_order_type: type of the first state of the Adam and RMSprop families.
        second_order_type: type of their second state.
        velocity_type: type of the velocity of SGD.
        max_grad_norm: limit of the global norm of all gradients; infinity for none. For SGD it is a
            limit of scaled gradients: `limit_of_norm`.
        uses_tf_variant: whether RMSprop follows TensorFlow, and Adam and AdamW add eps before the
            second moment is corrected. SGD has no variant.
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
    loss_scale_rule: LossScaleRule | None = None

    @property
    def clips(self) -> bool:
        """Whether the global norm of all gradients has a limit."""
        return math.isfinite(self.max_grad_norm)

    def limit_of_norm(self, loss_scaling: float | Tensor) -> float | Tensor:
        """Returns the limit of the norm of all gradients without loss scaling.

        PopART divides gradients by the loss scale before it accumulates and clips them. For SGD the
        loss scale is in the scaled learning rate, so that the scaled gradient is clipped.

        Args:
            loss_scaling: loss scaling of the optimiser, without an automatic factor.
        """
        return self.max_grad_norm / loss_scaling if self.kind.is_sgd else self.max_grad_norm

    @property
    def unscaled(self) -> OptimizerConfig:
        """The equivalent optimiser for gradients without loss scaling."""
        limit = self.limit_of_norm(self.loss_scaling.value)
        assert isinstance(limit, float)
        return replace(
            self,
            loss_scaling=Hyper(1.0, is_constant=True),
            loss_scale_rule=None,
            max_grad_norm=limit,
        )

    def value(self, name: str, group: int) -> float:
        """Returns the present value of a hyper-parameter. All groups share one loss scaling."""
        hyper = self.loss_scaling if name == LOSS_SCALING else self.groups[group][name]
        return hyper.value


def scalar_name(name: str, group: int) -> str:
    """Returns the name of a group's hyper-parameter in a program."""
    return f"{name}:{0 if name == LOSS_SCALING else group}"


def split_scalar(name: str) -> tuple[str, int]:
    """Returns hyper-parameter and group; the inverse of `scalar_name`."""
    hyper, _, group = name.partition(":")
    return hyper, int(group or 0)
