"""SGD, Adam, AdamW, RMSprop and LAMB with PopTorch's arguments.

An argument that is given is variable: it may change after compilation through `setOptimizer`. What
is left at `None` has PyTorch's default and is constant. `foreach`, `maximize`, `capturable`,
`differentiable` and `fused` are accepted and have no effect on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from poptorch_emu.optim.base import (
    Optimizer,
    VariableAttributes,
    check_accum_types,
    given,
    warn_velocity_scaling,
)

Parameters = Iterable[Any]


def _finish(optimizer: Any, explicit: dict[str, Any], loss_scaling: float | None) -> None:
    """Sets what every optimiser has beside PyTorch's part."""
    variable = set(explicit) | ({"loss_scaling"} if loss_scaling is not None else set())
    allowed = [*optimizer.defaults, "loss_scaling"]
    optimizer.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
    optimizer.variable_attrs = VariableAttributes(variable, allowed)
    optimizer._init_state()


def _or_float32(dtype: torch.dtype | None) -> torch.dtype:
    return torch.float32 if dtype is None else dtype


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent; velocity starts at zero (exact)."""

    def __init__(
        self,
        params: Parameters,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes PyTorch's arguments and those of the device; `None` means the default."""
        explicit = given(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
        extra = given(maximize=maximize, foreach=foreach, differentiable=differentiable)
        torch.optim.SGD.__init__(self, params, **explicit, **extra, **kwargs)
        self.use_combined_accum = bool(use_combined_accum)
        self.accum_type = _or_float32(accum_type)
        self.velocity_accum_type = _or_float32(velocity_accum_type)
        check_accum_types(self.accum_type, self.velocity_accum_type)
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm
        if self.use_combined_accum:
            self.defaults["velocity_scaling"] = (
                1.0 if velocity_scaling is None else velocity_scaling
            )
            explicit.update(given(velocity_scaling=velocity_scaling))
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif velocity_scaling is not None:
            warn_velocity_scaling()
        _finish(self, explicit, loss_scaling)


class _AdamBase(Optimizer):
    """The arguments that Adam and AdamW add to PyTorch's."""

    def _init_types(
        self,
        accum_type: torch.dtype | None,
        first_order: torch.dtype | None,
        second_order: torch.dtype | None,
        max_grad_norm: float | None = None,
    ) -> None:
        self.accum_type = _or_float32(accum_type)
        self.first_order_momentum_accum_type = _or_float32(first_order)
        self.second_order_momentum_accum_type = _or_float32(second_order)
        check_accum_types(
            self.accum_type,
            self.first_order_momentum_accum_type,
            self.second_order_momentum_accum_type,
        )
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm


class Adam(_AdamBase, torch.optim.Adam):
    """Adam with L2 weight decay (exact)."""

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes PyTorch's arguments and those of the device; `None` means the default."""
        explicit = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        extra = given(
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        torch.optim.Adam.__init__(self, params, **explicit, **extra, **kwargs)
        self._init_types(
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
            max_grad_norm,
        )
        _finish(self, explicit, loss_scaling)


class AdamW(_AdamBase, torch.optim.AdamW):
    """Adam with decoupled weight decay; `bias_correction` has no effect, as in PopTorch (exact)."""

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes PyTorch's arguments and those of the device; `None` means the default."""
        explicit = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        extra = given(
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        torch.optim.AdamW.__init__(self, params, **explicit, **extra, **kwargs)
        self.bias_correction = True if bias_correction is None else bias_correction
        self._init_types(
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
            max_grad_norm,
        )
        _finish(self, explicit, loss_scaling)


class RMSprop(_AdamBase, torch.optim.RMSprop):
    """RMSprop, plain, centered or in TensorFlow's variant (exact)."""

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes PyTorch's arguments and those of the device; `None` means the default."""
        explicit = given(
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
        )
        extra = given(foreach=foreach, maximize=maximize, differentiable=differentiable)
        torch.optim.RMSprop.__init__(self, params, **explicit, **extra, **kwargs)
        self.use_tf_variant = bool(use_tf_variant)
        self._init_types(
            accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type
        )
        _finish(self, explicit, loss_scaling)


class LAMB(_AdamBase, torch.optim.Optimizer):
    """Layer-wise adaptive moments for large batches (exact)."""

    def __init__(
        self,
        params: Parameters,
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
        """Takes the arguments of the rule; `None` means the default."""
        explicit = given(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm
        )
        # Source: PopTorch's LAMB; 65500 keeps a float16 norm finite.
        defaults = {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": 65500.0,
        }
        torch.optim.Optimizer.__init__(self, params, {**defaults, **explicit})
        self.bias_correction = True if bias_correction is None else bias_correction
        self.max_weight_norm = self.defaults["max_weight_norm"]
        self._init_types(
            accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type
        )
        _finish(self, explicit, loss_scaling)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the parameters on the host by the same formula, for reference runs."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["first"] = torch.zeros_like(parameter)
            state["second"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        gradient = parameter.grad
        first = state["first"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        second = state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if self.bias_correction:
            first = first / (1 - beta1 ** state["step"])
            second = second / (1 - beta2 ** state["step"])
        direction = first / (second.sqrt() + group["eps"]) + parameter * group["weight_decay"]
        bounded = parameter.norm().clamp(max=group["max_weight_norm"])
        norm = direction.norm()
        ratio = bounded / norm if bounded > 0 and norm > 0 else 1.0
        parameter.sub_(direction * (ratio * group["lr"]))
