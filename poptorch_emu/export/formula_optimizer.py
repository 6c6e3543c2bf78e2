"""An optimiser of PyTorch that computes by the emulator's own formulas.

It serves rules that `torch.optim` lacks or defines differently: LAMB, velocities that start at
    zero,
and states in float16. This file and the formulas are plain PyTorch, because a saved program
contains copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from poptorch_emu.update.formulas.clipping import clip_scale
from poptorch_emu.update.formulas.optimizer_config import (
    HYPERS,
    GroupConfig,
    Hyper,
    OptimizerConfig,
    OptimizerKind,
)
from poptorch_emu.update.formulas.rules import state_names, update

# Key of a parameter group whose value is the index of the group in the config.
GROUP_INDEX = "group_index"
_TYPES = ("first_order_type", "second_order_type", "velocity_type")


class FormulaOptimizer(torch.optim.Optimizer):
    """An optimiser whose groups have the hyper-parameters of a compiled optimiser's rule (exact).

    A scheduler may change them, except a momentum that was a constant 0. The state of a parameter
    has PopART's names, except `step`, because PyTorch keeps the dtype of an entry of that name.
    """

    def __init__(
        self, params: Iterable[dict[str, Any]], config: OptimizerConfig, lr: float = 0.0
    ) -> None:
        """Stores groups, each with `GROUP_INDEX` and its hyper-parameters.

        Args:
            params: the groups.
            config: the rule; it may clip the gradients of all parameters together.
            lr: learning rate of groups that set none.
        """
        self._config = config
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates each parameter that has a gradient once (exact).

        Args:
            closure: function that computes the loss again; `step` returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        config = self._config
        scale = None
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        present = [gradient for gradient in gradients if gradient is not None]
        if config.clips and present:
            scale = clip_scale(present, config.max_grad_norm)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad if scale is None else parameter.grad * scale
                    self._update(parameter, gradient, group)
        return loss

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]
    ) -> None:
        config, index = self._config, group[GROUP_INDEX]
        kept, state = self.state[parameter], {}
        for spec in state_names(config, config.groups[index]):
            shape = () if spec.is_scalar else parameter.shape
            first = torch.full(shape, spec.initial, dtype=spec.dtype, device=parameter.device)
            state[spec.name] = kept.get(state_key(spec.name), first)
        hyper = {name: group[name] for name in HYPERS[config.kind]}
        weight, state = update(config, index, parameter, gradient, state, hyper)
        parameter.copy_(weight)
        kept.update({state_key(name): value for name, value in state.items()})


def state_key(name: str) -> str:
    """Returns the optimiser's key for a state with PopART's name."""
    return "step" if name == "Step" else name


def plain_config(config: OptimizerConfig) -> dict[str, Any]:
    """Returns the rule as values of JSON; `config_of` is the inverse."""
    return {
        "kind": int(config.kind),
        "groups": [
            {name: [hyper.value, hyper.is_constant] for name, hyper in group.hypers}
            for group in config.groups
        ],
        "max_grad_norm": config.max_grad_norm,
        "uses_tf_variant": config.uses_tf_variant,
        **{name: str(getattr(config, name)).removeprefix("torch.") for name in _TYPES},
    }


def config_of(plain: Mapping[str, Any]) -> OptimizerConfig:
    """Returns the rule that `plain_config` converted."""
    groups = (
        GroupConfig(tuple((name, Hyper(*hyper)) for name, hyper in group.items()))
        for group in plain["groups"]
    )
    types = {name: getattr(torch, plain[name]) for name in _TYPES}
    return OptimizerConfig(
        OptimizerKind(plain["kind"]),
        tuple(groups),
        group_of_parameter=(),
        max_grad_norm=plain["max_grad_norm"],
        uses_tf_variant=plain["uses_tf_variant"],
        **types,
    )
