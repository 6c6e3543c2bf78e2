"""The optimiser of `torch.optim` that does what a compiled model's optimiser does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.module_loading import LateModule
from poptorch_emu.optim.torch_state import entries_of
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    OptimizerConfig,
    OptimizerKind,
)

if TYPE_CHECKING:
    from poptorch_emu.export import pipeline_runner
else:  # It loads PyTorch's pipelining, which takes some seconds.
    pipeline_runner = LateModule("poptorch_emu.export.pipeline_runner")

# Names of classes in torch.optim.
_CLASSES = {
    OptimizerKind.SGD1: "SGD",
    OptimizerKind.SGD2: "SGD",
    OptimizerKind.RMSPROP: "RMSprop",
    OptimizerKind.RMSPROP_CENTERED: "RMSprop",
    OptimizerKind.ADAM: "Adam",
    OptimizerKind.ADAMW: "AdamW",
    OptimizerKind.ADAMW_NO_BIAS: "AdamW",
}


@dataclass(frozen=True)
class TorchOptimizer:
    """An optimiser of `torch.optim`.

    Attributes:
        spec: its class, and its groups with names of parameters and values.
        states: of each parameter, by name.
    """

    spec: dict[str, Any]
    states: dict[str, dict[str, torch.Tensor]]

    def over(self, parameters: Mapping[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Returns a new optimiser of those parameters, with names, that it knows."""
        return pipeline_runner.make_optimizer(parameters, self.spec, self.states)


def torch_optimizer_of(
    config: OptimizerConfig,
    parameters: Mapping[str, torch.nn.Parameter],
    states: Mapping[str, torch.Tensor],
) -> TorchOptimizer:
    """Returns the optimiser of torch.optim that computes the same.

    Args:
        config: the optimiser as it is now.
        parameters: all of the model's, in the model's order.
        states: by PopART's names; none if the optimiser never ran.

    Raises:
        Error: torch.optim has no such optimiser.
    """
    _check(config)
    groups = dict(zip(parameters, config.group_of_parameter, strict=True))
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    return TorchOptimizer(_spec(config, groups, trained), _states(config, trained, states))


def _check(config: OptimizerConfig) -> None:
    """Raises an `Error` if no optimiser of `torch.optim` computes the same."""
    reason = _difference(config)
    if reason:
        raise make_error(f"The optimizer has no exact counterpart in torch.optim: {reason}")


def _difference(config: OptimizerConfig) -> str:
    """Returns what torch.optim does not have, and the way out; "" if it has all."""
    if config.kind not in _CLASSES:
        return f"there is no {config.kind.name} there. Compile the model with AdamW, say."
    if config.clips:
        return (
            f"it clips gradients (max_grad_norm={config.max_grad_norm}). Compile the model without "
            "max_grad_norm, and clip with torch.nn.utils.clip_grad_norm_, over all stages."
        )
    if config.loss_scale_rule is not None or config.loss_scaling.value != 1.0:
        return (
            f"it scales the loss (loss_scaling={config.loss_scaling.value}). Compile the model "
            "with loss_scaling=1 and use torch.amp.GradScaler if it computes in float16."
        )
    types = (config.accum_type, config.first_order_type, config.second_order_type)
    if any(dtype is not torch.float32 for dtype in (*types, config.velocity_type)):
        return "it keeps gradients or states in float16. Leave its accum_type arguments out."
    if config.uses_tf_variant:
        return "it is TensorFlow's RMSprop. Set use_tf_variant=False."
    for group in config.groups:
        if config.kind.is_sgd and group["dampening"].value != 0.0:
            return (
                f"its velocity starts at zero, so that dampening={group['dampening'].value} counts "
                "in the first step. Set dampening=0."
            )
    return ""


def _spec(
    config: OptimizerConfig, group_of_name: Mapping[str, int], trained: Iterable[str]
) -> dict[str, Any]:
    """Returns the spec: its class, and its groups with names and values.

    Args:
        config: of an optimiser that torch.optim has.
        group_of_name: for each parameter of the model the group in `config`.
        trained: names of the parameters that get a gradient.
    """
    names = list(trained)
    groups = [
        {
            "names": [name for name in names if group_of_name[name] == index],
            "values": _hypers(config.kind, group),
        }
        for index, group in enumerate(config.groups)
    ]
    return {"class": _CLASSES[config.kind], "groups": [group for group in groups if group["names"]]}


def _states(
    config: OptimizerConfig, names: Iterable[str], states: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, torch.Tensor]]:
    """Returns the state of each parameter as torch.optim has it.

    Args:
        config: of an optimiser that torch.optim has.
        names: of the parameters.
        states: of the compiled optimiser, by PopART's names; none if it never ran.
    """
    found = {name: _state(config, name, states) for name in names}
    return {name: state for name, state in found.items() if state}


def _hypers(kind: OptimizerKind, group: GroupConfig) -> dict[str, Any]:
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


def _state(
    config: OptimizerConfig, name: str, states: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    found = {
        torch_name: states[f"{prefix}___{name}"].detach().clone()
        for prefix, torch_name in entries_of(config.kind).items()
        if f"{prefix}___{name}" in states
    }
    if "step" in found:
        found["step"] = found["step"].reshape(())
    elif found and config.kind.is_rmsprop:
        found["step"] = torch.zeros(())  # Ours does not count; PyTorch's does, to no effect.
    return found
