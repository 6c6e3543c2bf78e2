"""SGD, Adam, AdamW and RMSprop with PopTorch's arguments beside PyTorch's.

An argument that is given is *variable*: `setOptimizer` may change it after compilation. An
argument that is `None` has PyTorch's default and is *constant*. PyTorch's `foreach`, `capturable`,
`differentiable` and `fused` select implementations of the same formula and have no effect on the
device (accepted). Nor has `maximize`, as in PopTorch, because the loss is always minimised. Later
arguments of PyTorch can be given by keyword. Docstrings list the arguments that PyTorch lacks.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from poptorch_emu.log import logger
from poptorch_emu.optim.optimizer_base import Optimizer, given_arguments


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent (exact).

    Unlike in PyTorch, the velocity starts at zero, so that `dampening` affects the first step,
    too, and also has an effect without momentum.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> poptorch.optim.SGD([weight], lr=0.1, loss_scaling=128.0).loss_scaling
        128.0
    """

    def __init__(
        self,
        params: ParamsT,
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
        **torch_arguments: Any,
    ) -> None:
        """Stores PyTorch's arguments and those of the device.

        Args:
            loss_scaling: factor of the loss before back-propagation, 1 by default.
            velocity_scaling: factor of the combined accumulator, 1 by default.
            use_combined_accum: whether one tensor is both velocity and gradient accumulator.
            accum_type: dtype of accumulated gradients, float32 (the default) or float16.
            velocity_accum_type: dtype of the velocity, as above.
            max_grad_norm: limit of the global norm of all gradients; no limit by default.

        Raises:
            AssertionError: a dtype is neither float32 nor float16.
        """
        arguments = locals()
        given = given_arguments(arguments, signature(torch.optim.SGD).parameters)
        torch.optim.SGD.__init__(self, params, **given)
        self.use_combined_accum = bool(use_combined_accum)
        if self.use_combined_accum:
            given |= {} if velocity_scaling is None else {"velocity_scaling": velocity_scaling}
            self._add_velocity_scaling(given.get("velocity_scaling", 1.0))
        elif velocity_scaling is not None:
            logger.warning(
                "velocity_scaling value ignored when using the separate variant of SGD "
                "(use_combined_accum=False). Leave it out or set use_combined_accum=True."
            )
        self._add_device_part(given, arguments)

    def _add_velocity_scaling(self, velocity_scaling: float) -> None:
        self.defaults["velocity_scaling"] = velocity_scaling
        for group in self.param_groups:
            group.setdefault("velocity_scaling", velocity_scaling)


class Adam(Optimizer, torch.optim.Adam):
    """Adam with weight decay added to the gradient (exact)."""

    def __init__(
        self,
        params: ParamsT,
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
        **torch_arguments: Any,
    ) -> None:
        """Stores PyTorch's arguments and those of the device.

        Args:
            loss_scaling: factor of the loss before back-propagation, 1 by default.
            accum_type: dtype of accumulated gradients, float32 (the default) or float16.
            first_order_momentum_accum_type: dtype of the first moment, as above.
            second_order_momentum_accum_type: dtype of the second moment, as above.
            max_grad_norm: limit of the global norm of all gradients; no limit by default.

        Raises:
            AssertionError: a dtype is neither float32 nor float16.
        """
        arguments = locals()
        given = given_arguments(arguments, signature(torch.optim.Adam).parameters)
        torch.optim.Adam.__init__(self, params, **given)
        self._add_device_part(given, arguments)


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay (exact).

    `bias_correction=False` has no effect, as in PopTorch: the moments are always corrected.
    """

    def __init__(
        self,
        params: ParamsT,
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
        **torch_arguments: Any,
    ) -> None:
        """Stores PyTorch's arguments and those of the device.

        Args:
            loss_scaling: factor of the loss before back-propagation, 1 by default.
            bias_correction: argument without effect.
            accum_type: dtype of accumulated gradients, float32 (the default) or float16.
            first_order_momentum_accum_type: dtype of the first moment, as above.
            second_order_momentum_accum_type: dtype of the second moment, as above.
            max_grad_norm: limit of the global norm of all gradients; no limit by default.

        Raises:
            AssertionError: a dtype is neither float32 nor float16.
        """
        arguments = locals()
        given = given_arguments(arguments, signature(torch.optim.AdamW).parameters)
        torch.optim.AdamW.__init__(self, params, **given)
        self.bias_correction = bias_correction is None or bias_correction
        self._add_device_part(given, arguments)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, plain or centered, by PyTorch's or by TensorFlow's formula (exact)."""

    def __init__(
        self,
        params: ParamsT,
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
        **torch_arguments: Any,
    ) -> None:
        """Stores PyTorch's arguments and those of the device.

        Args:
            loss_scaling: factor of the loss before back-propagation, 1 by default.
            accum_type: dtype of accumulated gradients, float32 (the default) or float16.
            first_order_momentum_accum_type: dtype of the mean square, as above.
            second_order_momentum_accum_type: dtype of the mean gradient, as above.
            use_tf_variant: whether the mean square starts at 1, eps is inside the root, and the
                momentum accumulates steps that include the learning rate.

        Raises:
            AssertionError: a dtype is neither float32 nor float16.
        """
        arguments = locals()
        given = given_arguments(arguments, signature(torch.optim.RMSprop).parameters)
        torch.optim.RMSprop.__init__(self, params, **given)
        self.use_tf_variant = bool(use_tf_variant)
        self._add_device_part(given, arguments)
