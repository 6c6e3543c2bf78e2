"""Elementwise steps with a factor that is a number or a 0-d tensor, with the same bits for both.

PyTorch's fused forms only accept numbers. A 0-d tensor uses a form with the same rounding, so that
results do not depend on which hyper-parameters are constant. A 0-d factor is first cast to float32.
Otherwise, beside a 0-d weight, it would count as an operand, not as a scalar, and would widen the
result to float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

Value = float | Tensor


def single(value: Value) -> Value:
    """Returns a number unchanged, and a tensor in float32."""
    return value.float() if isinstance(value, Tensor) else value


def scaled(tensor: Tensor, factor: Value) -> Tensor:
    """Returns `factor * tensor`."""
    return tensor * single(factor)


def add_scaled(tensor: Tensor, other: Tensor, factor: Value) -> Tensor:
    """Returns `tensor + factor * other`, rounded once if the CPU has fused multiply-add."""
    if isinstance(factor, Tensor):
        return torch.addcmul(tensor, other, factor.float())
    return torch.add(tensor, other, alpha=factor)


def add_product(tensor: Tensor, left: Tensor, right: Tensor, factor: Value) -> Tensor:
    """Returns `tensor + factor * left * right`."""
    if isinstance(factor, Tensor):
        return torch.addcmul(tensor, left * factor.float(), right)
    return torch.addcmul(tensor, left, right, value=factor)


def add_quotient(tensor: Tensor, numerator: Tensor, denominator: Tensor, factor: Value) -> Tensor:
    """Returns `tensor + factor * numerator / denominator`."""
    if isinstance(factor, Tensor):
        return torch.addcdiv(tensor, numerator * factor.float(), denominator)
    return torch.addcdiv(tensor, numerator, denominator, value=factor)


def moved_towards(average: Tensor, value: Tensor, fraction: Value) -> Tensor:
    """Returns `(1 - fraction) * average + fraction * value`."""
    return torch.lerp(average, value, single(fraction))


def is_zero(value: Value) -> bool:
    """Returns whether `value` is the number 0; False for a tensor, whose value is not known."""
    return not isinstance(value, Tensor) and value == 0
