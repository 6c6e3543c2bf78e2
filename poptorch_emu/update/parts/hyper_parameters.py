"""The hyper-parameters of an optimiser as scalars of a program."""

from __future__ import annotations

from poptorch_emu.update.formulas.config import LOSS_SCALING, OptimizerConfig


def scalar_name(name: str, group: int) -> str:
    """Returns the name of a group's hyper-parameter; the loss scaling belongs to all groups."""
    return f"{name}:{0 if name == LOSS_SCALING else group}"


def split_scalar(name: str) -> tuple[str, int]:
    """Returns hyper-parameter and group; the inverse of `scalar_name`."""
    hyper, _, group = name.partition(":")
    return hyper, int(group or 0)


def scalar_value(optimizer: OptimizerConfig, name: str, group: int) -> float:
    """Returns the present value of a hyper-parameter."""
    hyper = optimizer.loss_scaling if name == LOSS_SCALING else optimizer.groups[group][name]
    return hyper.value
