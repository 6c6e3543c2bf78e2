"""Which rule an optimiser object asks for, and what the object must be like."""

from __future__ import annotations

import math
from typing import Any

import torch

from poptorch_emu.errors import require
from poptorch_emu.log import logger
from poptorch_emu.optim.lamb import LAMB
from poptorch_emu.optim.optimizer_base import Optimizer
from poptorch_emu.update.formulas.optimizer_config import LOSS_SCALING, OptimizerKind

# Attributes of the object beside its groups; a plain PyTorch optimiser has none of them.
_DEFAULT_ATTRIBUTES = {
    LOSS_SCALING: 1.0,
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
    "velocity_accum_type": torch.float32,
    "max_grad_norm": math.inf,
    "use_tf_variant": False,
    "use_combined_accum": False,
    "bias_correction": True,
}
# Those which any of our own optimisers must have.
_MANDATORY = {LOSS_SCALING, "accum_type"}


def optimizer_kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Returns the rule of `optimizer`.

    Raises:
        AssertionError: there is none, or its groups want different ones.
    """
    has_bias_correction = attribute(optimizer, "bias_correction")
    if isinstance(optimizer, torch.optim.SGD):
        is_combined = attribute(optimizer, "use_combined_accum")
        return OptimizerKind.SGD1 if is_combined else OptimizerKind.SGD2
    # PyTorch's AdamW is an Adam whose `decoupled_weight_decay` is set.
    if isinstance(optimizer, torch.optim.Adam):
        if not _agreed(optimizer, "decoupled_weight_decay"):
            return OptimizerKind.ADAM
        return OptimizerKind.ADAMW if has_bias_correction else OptimizerKind.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.RMSprop):
        is_centered = _agreed(optimizer, "centered")
        return OptimizerKind.RMSPROP_CENTERED if is_centered else OptimizerKind.RMSPROP
    if isinstance(optimizer, LAMB):
        return OptimizerKind.LAMB if has_bias_correction else OptimizerKind.LAMB_NO_BIAS
    raise AssertionError(
        "Unsupported optimizer type. Types supported are SGD, Adam, AdamW and RMSprop, of "
        "torch.optim or poptorch.optim, and poptorch.optim.LAMB, but not "
        f"{type(optimizer).__module__}.{type(optimizer).__name__}."
    )


def check_supported(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError if `amsgrad` is on, which the device does not have."""
    if any(group.get("amsgrad") for group in (optimizer.defaults, *optimizer.param_groups)):
        raise ValueError(
            "Only non-amsgrad Adam/AdamW optimizers are supported. Leave amsgrad at False."
        )


def attribute(optimizer: torch.optim.Optimizer, name: str) -> Any:
    """Returns an attribute that the object has beside its groups.

    Raises:
        AssertionError: one of our own optimisers lacks it.
    """
    if isinstance(optimizer, Optimizer) and name in _MANDATORY:
        require(
            hasattr(optimizer, name),
            f"Mandatory attribute {name} not found in optimizer attributes",
        )
    return getattr(optimizer, name, _DEFAULT_ATTRIBUTES[name])


def warn_of_subclass(optimizer: torch.optim.Optimizer) -> None:
    """Says of a subclass that its code does not run on the device."""
    kind = type(optimizer)
    bases = {torch.optim.Optimizer, Optimizer}
    if kind is not torch.optim.AdamW and bases.isdisjoint(kind.__bases__):
        logger.warning(
            "Optimizer `%s` subclassed from classes in poptorch.optim or torch.optim. Poptorch "
            "does not run Python optimizer code directly: the device has its own rules, so that "
            "what the subclass overrides probably has no effect.",
            kind.__name__,
        )


def _agreed(optimizer: torch.optim.Optimizer, name: str) -> Any:
    """Returns the value of an attribute that all groups must share."""
    first = optimizer.param_groups[0].get(name)
    for index, group in enumerate(optimizer.param_groups):
        value = group.get(name)
        require(
            value == first,
            f"All parameter groups must have the same value for the '{name}' attribute "
            f"(Group 0: {first} / Group {index}: {value}).",
        )
    return first
