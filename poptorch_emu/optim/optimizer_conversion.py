"""Conversion of an optimiser to an `OptimizerConfig`: rule, values, and constant values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from poptorch_emu.errors import compiler_error, require
from poptorch_emu.optim.config_checks import check_values
from poptorch_emu.optim.lamb import LAMB
from poptorch_emu.optim.optimizer_base import Optimizer
from poptorch_emu.optim.optimizer_warnings import warn_of_differences
from poptorch_emu.update.formulas.loss_scale import LossScaleRule
from poptorch_emu.update.formulas.optimizer_config import (
    HYPERS,
    LOSS_SCALING,
    GroupConfig,
    Hyper,
    OptimizerConfig,
    OptimizerKind,
)

# Attributes of the object outside its groups; a plain PyTorch optimiser has none of them.
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
# Attributes that every optimiser of `poptorch.optim` must have.
_MANDATORY = {LOSS_SCALING, "accum_type"}

# A hyper-parameter of a plain PyTorch optimiser is constant if it has this value, else variable.
_CONSTANT_VALUES = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "dampening": 0.0,
    "eps": 1e-8,
    "velocity_scaling": 1.0,
    LOSS_SCALING: 1.0,
    "max_weight_norm": 65500.0,
}
_ADAMW_WEIGHT_DECAY = 1e-2
_ALWAYS_CONSTANT = {"alpha", "betas", "nesterov"}

# Position of each beta in `betas`.
_BETAS = {"beta1": 0, "beta2": 1}


def optimizer_kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Returns the rule of `optimizer`.

    Raises:
        AssertionError: the optimiser has no rule here, or its groups need different rules.
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
    if isinstance(optimizer, type):
        raise AssertionError(
            f"Unsupported optimizer type: {optimizer.__name__} is a class. Pass an instance, as "
            f"{optimizer.__name__}(model.parameters(), lr=0.01)."
        )
    raise AssertionError(
        "Unsupported optimizer type. Types supported are SGD, Adam, AdamW and RMSprop, of "
        "torch.optim or poptorch.optim, and poptorch.optim.LAMB, but not "
        f"{type(optimizer).__module__}.{type(optimizer).__name__}."
    )


def check_supported(optimizer: torch.optim.Optimizer) -> None:
    """Raises `ValueError` if `amsgrad` is on, because the device does not support it."""
    if any(group.get("amsgrad") for group in (optimizer.defaults, *optimizer.param_groups)):
        raise ValueError(
            "Only non-amsgrad Adam/AdamW optimizers are supported. Leave amsgrad at False."
        )


def attribute(optimizer: torch.optim.Optimizer, name: str) -> Any:
    """Returns an attribute that the object has outside its groups.

    Raises:
        AssertionError: an optimiser of `poptorch.optim` lacks the attribute.
    """
    if isinstance(optimizer, Optimizer) and name in _MANDATORY:
        require(
            hasattr(optimizer, name),
            f"Mandatory attribute {name} not found in optimizer attributes",
        )
    return getattr(optimizer, name, _DEFAULT_ATTRIBUTES[name])


def optimizer_config(
    optimizer: torch.optim.Optimizer,
    named_parameters: Mapping[str, torch.nn.Parameter],
    *,
    loss_scale_rule: LossScaleRule | None = None,
) -> OptimizerConfig:
    """Returns the description of `optimizer` for the compiler.

    Args:
        optimizer: optimiser of `poptorch.optim`, or of PyTorch with a counterpart there.
        named_parameters: all parameters of the model, in the compiler's order.
        loss_scale_rule: rule that changes the loss scaling, which is then variable.

    Raises:
        AssertionError: the rule is unknown, or an attribute is missing or not a number.
        Error: a value is out of the range of the rule.
        KeyError: a group has a parameter that the model does not have.
        ValueError: `amsgrad` is on.
    """
    check_supported(optimizer)
    kind = optimizer_kind(optimizer)
    groups = [optimizer.defaults, *optimizer.param_groups]
    loss_scaling = _hyper(
        optimizer, kind, LOSS_SCALING, {LOSS_SCALING: attribute(optimizer, LOSS_SCALING)}
    )
    if loss_scale_rule is not None:
        loss_scaling = Hyper(loss_scaling.value, is_constant=False)
    config = OptimizerConfig(
        kind=kind,
        groups=tuple(_group(optimizer, kind, group) for group in groups),
        group_of_parameter=_group_of_parameter(optimizer, named_parameters),
        loss_scaling=loss_scaling,
        accum_type=attribute(optimizer, "accum_type"),
        first_order_type=attribute(optimizer, "first_order_momentum_accum_type"),
        second_order_type=attribute(optimizer, "second_order_momentum_accum_type"),
        velocity_type=attribute(optimizer, "velocity_accum_type"),
        max_grad_norm=_max_grad_norm(optimizer),
        uses_tf_variant=bool(attribute(optimizer, "use_tf_variant")),
        loss_scale_rule=loss_scale_rule,
    )
    check_values(config)
    warn_of_differences(optimizer, config)
    return config


def needs_running_mean(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether gradients must be averaged during accumulation.

    Otherwise a sum in float16 might overflow. The combined accumulator of SGD is an exception.
    """
    is_half = attribute(optimizer, "accum_type") is torch.float16
    return is_half and optimizer_kind(optimizer) is not OptimizerKind.SGD1


def check_reduction(optimizer: torch.optim.Optimizer, *, is_running_mean: bool) -> None:
    """Checks that a compiled model can continue with an optimiser.

    Args:
        optimizer: the new optimiser.
        is_running_mean: whether the compiled model averages gradients during accumulation.

    Raises:
        ValueError: the model divides at the end, but a float16 accumulator needs a running mean.
    """
    if needs_running_mean(optimizer) and not is_running_mean:
        raise ValueError(
            "Invalid optimizer: its accum_type, torch.float16, needs the option "
            "options.Training.meanAccumulationAndReplicationReductionStrategy to be "
            "poptorch.MeanReductionStrategy.Running, but the model is already compiled without it. "
            "Set the option or the optimizer before the first call."
        )


def _max_grad_norm(optimizer: torch.optim.Optimizer) -> float:
    limit = _number("max_grad_norm", attribute(optimizer, "max_grad_norm"))
    if math.isnan(limit):
        raise compiler_error(
            "Maximum norm of gradients cannot be NaN: give max_grad_norm a positive number, or "
            "leave it out for no limit."
        )
    return limit


def _group(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, group: Mapping[str, Any]
) -> GroupConfig:
    names = HYPERS[kind]
    return GroupConfig(tuple((name, _hyper(optimizer, kind, name, group)) for name in names))


def _hyper(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, name: str, group: Mapping[str, Any]
) -> Hyper:
    key = "betas" if name in _BETAS else name
    require(key in group, f"Mandatory attribute {key} not found in optimizer group")
    value = group[key]
    is_constant = _is_constant(optimizer, kind, key, value)
    if name in _BETAS:
        require(
            isinstance(value, tuple) and len(value) == 2,
            f"Expected a pair for betas but got {value} instead",
        )
        value = value[_BETAS[name]]
    return Hyper(_number(key, value), is_constant)


def _is_constant(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, key: str, value: Any
) -> bool:
    if isinstance(optimizer, Optimizer):
        return optimizer.variable_attrs.isConstant(key)
    if key in _ALWAYS_CONSTANT:
        return True
    if key == "weight_decay" and kind is OptimizerKind.ADAMW:
        return bool(value == _ADAMW_WEIGHT_DECAY)
    return key in _CONSTANT_VALUES and bool(value == _CONSTANT_VALUES[key])


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    is_flag = isinstance(value, bool) and name == LOSS_SCALING
    is_number = isinstance(value, Real) and not is_flag
    require(is_number, f"Expected a number for {name} but got {value} instead")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _group_of_parameter(
    optimizer: torch.optim.Optimizer, named_parameters: Mapping[str, torch.nn.Parameter]
) -> tuple[int, ...]:
    """Returns the group of each parameter; 0, the defaults, for a parameter in no group."""
    members = {id(parameter) for parameter in named_parameters.values()}
    group_of: dict[int, int] = {}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in members:
                place = f"Parameter {position} of group {index} of {type(optimizer).__name__}"
                raise _foreign(place, parameter, named_parameters)
            group_of[id(parameter)] = index + 1
    return tuple(group_of.get(id(parameter), 0) for parameter in named_parameters.values())


class ForeignParameterError(KeyError):
    """Raised if a group has a parameter that the model lacks; PopTorch raises `KeyError`."""

    def __str__(self) -> str:
        """Returns the message without the quotes that `KeyError` adds."""
        return str(self.args[0])


def _foreign(
    place: str, parameter: torch.nn.Parameter, named_parameters: Mapping[str, torch.nn.Parameter]
) -> ForeignParameterError:
    shape = list(parameter.shape)
    alike = (name for name, own in named_parameters.items() if list(own.shape) == shape)
    name = next(alike, None)
    reason = (
        "the model has none of that shape."
        if name is None
        else f"'{name}' of the model has that shape, but is another tensor. Was the model copied, "
        "or were its parameters replaced, after the optimizer was made?"
    )
    return ForeignParameterError(
        f"{place}, of shape {shape}, is not part of the model: {reason} Make the optimizer from "
        "the parameters of the model that is wrapped."
    )


def _agreed(optimizer: torch.optim.Optimizer, name: str) -> Any:
    """Returns the value of an attribute that must be equal in all groups."""
    first = optimizer.param_groups[0].get(name)
    for index, group in enumerate(optimizer.param_groups):
        value = group.get(name)
        require(
            value == first,
            f"All parameter groups must have the same value for the '{name}' attribute "
            f"(Group 0: {first} / Group {index}: {value}).",
        )
    return first
