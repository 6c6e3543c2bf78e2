"""The optimiser in plain PyTorch that computes the same updates as a compiled model's optimiser.

It is one of `torch.optim` if that computes the same, otherwise it uses the emulator's formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.export.formula_optimizer import GROUP_INDEX, plain_config, state_key
from poptorch_emu.module_loading import LateModule
from poptorch_emu.optim.torch_state import entries_of
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    OptimizerConfig,
    OptimizerKind,
)

if TYPE_CHECKING:
    from poptorch_emu.export import pipeline_runner
else:  # Imported late, because it loads PyTorch's pipelining, which takes some seconds.
    pipeline_runner = LateModule("poptorch_emu.export.pipeline_runner")

# Class in torch.optim for each rule that it has, by name.
_CLASSES = {
    OptimizerKind.SGD1: "SGD",
    OptimizerKind.SGD2: "SGD",
    OptimizerKind.RMSPROP: "RMSprop",
    OptimizerKind.RMSPROP_CENTERED: "RMSprop",
    OptimizerKind.ADAM: "Adam",
    OptimizerKind.ADAMW: "AdamW",
    OptimizerKind.ADAMW_NO_BIAS: "AdamW",
}
# PopART's prefixes of all states that a rule may have.
_PREFIXES = ("Accl", "Accl1", "Accl2", "Accl3", "Step")


@dataclass(frozen=True)
class TorchOptimizer:
    """An optimiser of plain PyTorch.

    Attributes:
        spec: the optimiser's class and its groups, with names of parameters and values; for the
            emulator's formulas, the rule in place of the class.
        states: state tensors of each parameter by name.
    """

    spec: dict[str, Any]
    states: dict[str, dict[str, torch.Tensor]]

    def over(self, parameters: Mapping[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Returns a new optimiser for parameters, whose names must be in the groups."""
        return pipeline_runner.make_optimizer(parameters, self.spec, self.states)


def torch_optimizer_of(
    config: OptimizerConfig,
    parameters: Mapping[str, torch.nn.Parameter],
    states: Mapping[str, torch.Tensor],
) -> TorchOptimizer:
    """Returns the optimiser in plain PyTorch that computes the same updates.

    Args:
        config: present configuration of the optimiser.
        parameters: all parameters of the model, in the model's order.
        states: state tensors by PopART's names; empty if the optimiser never ran.

    Raises:
        Error: plain PyTorch has no such optimiser.
    """
    _check(config)
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    group_of = dict(zip(parameters, config.group_of_parameter, strict=True))
    is_torch = _is_in_torch(config)
    groups = [
        {
            "names": [name for name in trained if group_of[name] == index],
            "values": (
                _torch_hypers(config.kind, group)
                if is_torch
                else {GROUP_INDEX: index} | {key: hyper.value for key, hyper in group.hypers}
            ),
        }
        for index, group in enumerate(config.groups)
    ]
    spec: dict[str, Any] = {"groups": [group for group in groups if group["names"]]}
    spec |= {"class": _CLASSES[config.kind]} if is_torch else {"formulas": plain_config(config)}
    keys = entries_of(config.kind) if is_torch else {name: state_key(name) for name in _PREFIXES}
    return TorchOptimizer(spec, _states(trained, states, keys))


def _check(config: OptimizerConfig) -> None:
    """Raises an `Error` if the optimiser does work that PyTorch leaves to other objects."""
    if config.loss_scale_rule is not None or config.loss_scaling.value != 1.0:
        raise make_error(
            f"The optimizer scales the loss (loss_scaling={config.loss_scaling.value}), but "
            "optimizers of PyTorch do not scale the loss. Compile the model with loss_scaling=1, "
            "and use torch.amp.GradScaler if it computes in float16."
        )
    if config.accum_type is not torch.float32:
        raise make_error(
            f"The optimizer adds up gradients in {config.accum_type}, but PyTorch adds them in the "
            "type of the weight. Leave accum_type out."
        )


def _is_in_torch(config: OptimizerConfig) -> bool:
    """Returns whether torch.optim has an optimiser that computes the same, bit for bit."""
    types = (config.first_order_type, config.second_order_type, config.velocity_type)
    has_dampening = config.kind.is_sgd and any(
        group["dampening"].value != 0.0 for group in config.groups
    )
    return (
        config.kind in _CLASSES
        and not config.clips
        and not config.uses_tf_variant
        and not has_dampening  # PyTorch's velocity starts with the first gradient.
        and all(dtype is torch.float32 for dtype in types)
    )


def _torch_hypers(kind: OptimizerKind, group: GroupConfig) -> dict[str, Any]:
    values = {name: hyper.value for name, hyper in group.hypers}
    if "beta1" in values:
        betas = values["beta1"], values["beta2"]
        return {key: values[key] for key in ("lr", "eps", "weight_decay")} | {"betas": betas}
    if kind.is_rmsprop:
        is_centered = kind is OptimizerKind.RMSPROP_CENTERED
        names = ("lr", "alpha", "eps", "weight_decay", "momentum")
        return {key: values[key] for key in names} | {"centered": is_centered}
    nesterov = bool(values["nesterov"])
    return {key: values[key] for key in ("lr", "momentum", "weight_decay")} | {"nesterov": nesterov}


def _states(
    names: Sequence[str], states: Mapping[str, torch.Tensor], keys: Mapping[str, str]
) -> dict[str, dict[str, torch.Tensor]]:
    """Returns the state of each parameter.

    Args:
        names: names of the parameters.
        states: state tensors of the compiled optimiser by PopART's names; empty if it never ran.
        keys: the optimiser's key for each of PopART's prefixes.
    """
    found = {name: _state(name, states, keys) for name in names}
    return {name: state for name, state in found.items() if state}


def _state(
    name: str, states: Mapping[str, torch.Tensor], keys: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    found = {
        key: states[f"{prefix}___{name}"].detach().clone()
        for prefix, key in keys.items()
        if f"{prefix}___{name}" in states
    }
    if "step" in found:
        found["step"] = found["step"].reshape(())
    elif "square_avg" in found:
        found["step"] = torch.zeros(())  # PyTorch counts RMSprop's steps, but does not use them.
    return found
