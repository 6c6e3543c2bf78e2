"""Activations: LeakyRelu, and steps of spiking networks with surrogate gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poptorch_emu.ops.named.named_operator import Attributes


def leaky_relu(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns x, or alpha x where x is negative; at 0 the gradient is 1."""
    (x,) = inputs
    return torch.where(x < 0, x * given["alpha"], x)


def cube(inputs: Sequence[torch.Tensor], given: Attributes) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns x³ + b and x³."""
    x, bias = inputs
    cubed = x * x * x
    return cubed + bias, cubed


class _StraightThroughEstimator(torch.autograd.Function):
    """A step function with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class _Step(torch.autograd.Function):
    """A step function that is 1 at 0; subclasses define the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        # Written so that NaN gives 1, as on the IPU.
        return torch.where(x < 0, torch.zeros_like(x), torch.ones_like(x))


class _FastSigmoid(_Step):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        slope: torch.Tensor = 1 / (1 + x.abs()).square()
        return gradients[0] * slope


class _Heaviside(_Step):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x < 0, torch.zeros_like(x), gradients[0])


def straight_through_estimator(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns 1 where x is positive, else 0."""
    return _StraightThroughEstimator.apply(*inputs)  # type: ignore[no-untyped-call]


def fast_sigmoid(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns 0 where x is negative, else 1; the gradient is that of x / (1 + |x|)."""
    return _FastSigmoid.apply(*inputs)  # type: ignore[no-untyped-call]


def heaviside(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns 0 where x is negative, else 1; the gradient is that of a ReLU."""
    return _Heaviside.apply(*inputs)  # type: ignore[no-untyped-call]
