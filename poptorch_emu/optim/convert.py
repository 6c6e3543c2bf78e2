"""From an optimiser object to an `OptimizerConfig`: which rule, which values, what is constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.optim.base import Optimizer
from poptorch_emu.optim.optimizers import LAMB
from poptorch_emu.update.config import GroupConfig, Hyper, OptimizerConfig, OptimizerKind

_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
_ADAM = ("lr", "betas", "eps", "weight_decay")
_HYPERS = {
    OptimizerKind.SGD1: (*_SGD, "velocity_scaling"),
    OptimizerKind.SGD2: _SGD,
    OptimizerKind.ADAM: _ADAM,
    OptimizerKind.ADAMW: _ADAM,
    OptimizerKind.ADAMW_NO_BIAS: _ADAM,
    OptimizerKind.RMSPROP: ("lr", "alpha", "eps", "weight_decay", "momentum"),
    OptimizerKind.RMSPROP_CENTERED: ("lr", "alpha", "eps", "weight_decay", "momentum"),
    OptimizerKind.LAMB: (*_ADAM, "max_weight_norm"),
    OptimizerKind.LAMB_NO_BIAS: (*_ADAM, "max_weight_norm"),
}
# Of a plain PyTorch optimiser an attribute is constant where it has this value.
_CONSTANT_VALUES = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "dampening": 0.0,
    "eps": 1e-8,
    "velocity_scaling": 1.0,
    "loss_scaling": 1.0,
    "max_weight_norm": 65500.0,
}
_ALWAYS_CONSTANT = {"alpha", "betas", "nesterov"}
# Nesterov chooses between two rules, so that it is compiled in whatever its attribute says.
_STRUCTURAL = {"nesterov"}


def optimizer_config(
    optimizer: torch.optim.Optimizer,
    named_parameters: Mapping[str, torch.nn.Parameter],
    *,
    is_automatic_loss_scaling: bool = False,
) -> OptimizerConfig:
    """Returns what the compiler needs to know of `optimizer`.

    Args:
        optimizer: of `poptorch.optim`, or one of PyTorch's with a counterpart there.
        named_parameters: the model's parameters.
        is_automatic_loss_scaling: the loss scaling changes by itself.

    Raises:
        AssertionError: there is no such rule, or an attribute is missing or not a number.
        KeyError: a group has a parameter that is not one of the model's.
        ValueError: `amsgrad` is on.
    """
    kind = optimizer_kind(optimizer)
    _check_amsgrad(optimizer)
    groups = [optimizer.defaults, *optimizer.param_groups]
    scaling = getattr(optimizer, "loss_scaling", 1.0)
    is_fixed = _is_constant(optimizer, kind, "loss_scaling", scaling)
    return OptimizerConfig(
        kind=kind,
        groups=tuple(_group(optimizer, kind, group) for group in groups),
        group_of_parameter=_group_of_parameter(optimizer, named_parameters),
        loss_scaling=Hyper(
            _number("loss_scaling", scaling), is_fixed and not is_automatic_loss_scaling
        ),
        accum_type=getattr(optimizer, "accum_type", torch.float32),
        first_order_type=getattr(optimizer, "first_order_momentum_accum_type", torch.float32),
        second_order_type=getattr(optimizer, "second_order_momentum_accum_type", torch.float32),
        velocity_type=getattr(optimizer, "velocity_accum_type", torch.float32),
        max_grad_norm=float(getattr(optimizer, "max_grad_norm", float("inf"))),
        uses_tf_variant=bool(getattr(optimizer, "use_tf_variant", False)),
    )


def optimizer_kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Returns the rule of `optimizer`; AdamW comes before Adam, whose subclass it is.

    Raises:
        AssertionError: there is none.
    """
    has_bias = getattr(optimizer, "bias_correction", True)
    if isinstance(optimizer, torch.optim.SGD):
        combined = getattr(optimizer, "use_combined_accum", False)
        return OptimizerKind.SGD1 if combined else OptimizerKind.SGD2
    if isinstance(optimizer, torch.optim.AdamW):
        return OptimizerKind.ADAMW if has_bias else OptimizerKind.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.Adam):
        return OptimizerKind.ADAM
    if isinstance(optimizer, torch.optim.RMSprop):
        return _rmsprop_kind(optimizer)
    if isinstance(optimizer, LAMB):
        return OptimizerKind.LAMB if has_bias else OptimizerKind.LAMB_NO_BIAS
    raise AssertionError(
        f"Unsupported optimizer type {type(optimizer)}. Types supported are SGD, Adam, AdamW and "
        "RMSprop of torch.optim and poptorch.optim, and poptorch.optim.LAMB."
    )


def _rmsprop_kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    first = optimizer.param_groups[0]["centered"]
    for index, group in enumerate(optimizer.param_groups):
        assert group["centered"] == first, (
            "All parameter groups must have the same value for the 'centered' attribute "
            f"(Group 0: {first} / Group {index}: {group['centered']})"
        )
    return OptimizerKind.RMSPROP_CENTERED if first else OptimizerKind.RMSPROP


def _check_amsgrad(optimizer: torch.optim.Optimizer) -> None:
    if any(group.get("amsgrad") for group in (optimizer.defaults, *optimizer.param_groups)):
        raise ValueError(
            "Only non-amsgrad Adam/AdamW optimizers are supported. Leave amsgrad at False."
        )


def _group(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, group: Mapping[str, Any]
) -> GroupConfig:
    hypers: list[tuple[str, Hyper]] = []
    for name in _HYPERS[kind]:
        assert name in group, f"Mandatory attribute {name} not found in optimizer group"
        value = group[name]
        is_constant = _is_constant(optimizer, kind, name, value)
        if name == "betas":
            assert isinstance(value, tuple) and len(value) == 2, (
                f"Expected a pair for betas but got {value} instead"
            )
            hypers.append(("beta1", Hyper(_number("betas", value[0]), is_constant)))
            hypers.append(("beta2", Hyper(_number("betas", value[1]), is_constant)))
        else:
            hypers.append((name, Hyper(_number(name, value), is_constant)))
    return GroupConfig(tuple(hypers))


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    assert isinstance(value, (int, float)), f"Expected a number for {name} but got {value} instead"
    return float(value)


def _is_constant(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, name: str, value: Any
) -> bool:
    if name in _STRUCTURAL:
        return True
    if isinstance(optimizer, Optimizer):
        return optimizer.variable_attrs.isConstant(name)
    if name in _ALWAYS_CONSTANT:
        return True
    is_adamw = kind is OptimizerKind.ADAMW and name == "weight_decay"
    return bool(value == (1e-2 if is_adamw else _CONSTANT_VALUES.get(name)))


def _group_of_parameter(
    optimizer: torch.optim.Optimizer, named_parameters: Mapping[str, torch.nn.Parameter]
) -> tuple[int, ...]:
    """Returns for each parameter its group, 0 (the defaults) for one in no group."""
    group_of = {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups, start=1)
        for parameter in group["params"]
    }
    known = {id(parameter) for parameter in named_parameters.values()}
    strangers = [parameter for parameter in group_of if parameter not in known]
    if strangers:
        index = group_of[strangers[0]] - 1
        raise KeyError(
            f"Parameter group {index} of the optimizer has a parameter that is not part of the "
            "model. Make the optimizer from the parameters of the model that is wrapped."
        )
    return tuple(group_of.get(id(parameter), 0) for parameter in named_parameters.values())
