"""LAMB, which PyTorch does not have: layer-wise adaptive moments for large batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from poptorch_emu.optim.optimizer_base import Optimizer, given_arguments
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    OptimizerConfig,
    OptimizerKind,
)
from poptorch_emu.update.formulas.rules import state_names, update

# Source: PopTorch's LAMB. A float16 norm cannot exceed 65504.
_DEFAULTS = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 1e-2,
    "max_weight_norm": 65500.0,
}


class LAMB(Optimizer, torch.optim.Optimizer):
    """Adam whose step is scaled by the norm of each weight (exact).

    Source: You et al., "Large Batch Optimization for Deep Learning", arXiv 1904.00962.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        """Stores the hyper-parameters; those that are given are variable, the others constant.

        Args:
            params: parameters or parameter groups.
            lr: learning rate, 1e-3 by default.
            betas: decays of the two moments, (0.9, 0.999) by default.
            eps: constant added to the root of the second moment, 1e-8 by default.
            weight_decay: decoupled weight decay inside the trust ratio, 1e-2 by default.
            bias_correction: whether moments are corrected for their start at 0; true by default.
            loss_scaling: factor of the loss before back-propagation, 1 by default.
            max_weight_norm: upper limit of the norm of a weight in the trust ratio, 65500 by
                default; 0 for a ratio of 1.
            accum_type: dtype of accumulated gradients, float32 (the default) or float16.
            first_order_momentum_accum_type: dtype of the first moment, as above.
            second_order_momentum_accum_type: dtype of the second moment, as above.

        Raises:
            AssertionError: a dtype is neither float32 nor float16.
            AssertionError: a type is neither float32 nor float16.
        """
        arguments = locals()
        given = given_arguments(arguments, _DEFAULTS)
        torch.optim.Optimizer.__init__(self, params, {**_DEFAULTS, **given})
        self.bias_correction = bias_correction is None or bias_correction
        self.max_weight_norm = self.defaults["max_weight_norm"]
        self._add_device_part(given, arguments)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates parameters on the host by the device's rule, for loops without one (exact)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        kind = OptimizerKind.LAMB if self.bias_correction else OptimizerKind.LAMB_NO_BIAS
        config = OptimizerConfig(kind, groups=(GroupConfig(()),), group_of_parameter=())
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(config, parameter, group)
        return loss

    def _step_one(
        self, config: OptimizerConfig, parameter: torch.Tensor, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            for spec in state_names(config, config.groups[0]):
                shape = () if spec.is_scalar else parameter.shape
                state[spec.name] = torch.full(shape, spec.initial, dtype=spec.dtype)
        hyper = {name: group[name] for name in ("lr", "eps", "weight_decay", "max_weight_norm")}
        hyper["beta1"], hyper["beta2"] = group["betas"]
        assert parameter.grad is not None, "checked by the caller"
        weight, new_state = update(config, 0, parameter, parameter.grad, dict(state), hyper)
        parameter.copy_(weight)
        state.update(new_state)
