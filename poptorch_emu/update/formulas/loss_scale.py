"""The rule by which an automatic loss scale follows the size of the gradients.

PopTorch documents the doubling and halving and the names of the settings; the rest is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Names of the variables on the device, and of the scale in use, as anchors see them.
FACTOR = "lossScaleUpdateFactor"
STATISTICS = "lossScaleStatistics"
TOTAL = "finalLossScale"

# What the host keeps with the optimiser's states, but no `state_dict` shows.
KEPT_VARIABLES = frozenset({FACTOR, STATISTICS})

_FLOAT16 = torch.finfo(torch.float16)


@dataclass(frozen=True)
class LossScaleRule:
    """When the scale changes; the defaults are our own.

    Attributes:
        bin_edge: from which part of the largest float16 number on a gradient's element is large.
        max_share: the scale is halved where a larger part of all elements is large.
        period: how many windows pass between two changes.
    """

    bin_edge: float = 0.125
    max_share: float = 1e-7
    period: int = 1

    @property
    def edge(self) -> float:
        """The magnitude from which on an element is large."""
        return self.bin_edge * _FLOAT16.max


def count_large(gradients: list[Tensor], edge: float) -> Tensor:
    """Returns how many elements have at least the magnitude `edge`, and how many are not finite.

    Args:
        gradients: of any shapes and floating-point types.
        edge: what is not finite counts as large, too.

    Returns:
        Both numbers, float32, of shape (2,).
    """
    large = [(~(gradient.abs() < edge)).sum() for gradient in gradients]
    overflowed = [(~torch.isfinite(gradient)).sum() for gradient in gradients]
    return torch.stack([torch.stack(large).sum(), torch.stack(overflowed).sum()]).float()


def next_factor(
    rule: LossScaleRule,
    factor: Tensor,
    statistics: Tensor,
    shares: Tensor,
    loss_scaling: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns the factor after a window, and the statistics that go with it.

    Args:
        rule: when the factor changes.
        factor: of this window, 0-d.
        statistics: how many windows have passed since the last change, and the sum of their
            shares of large elements; of shape (2,).
        shares: which parts of all elements are large, and not finite; of shape (2,).
        loss_scaling: what the factor multiplies; the product stays within float16's normal range.
    """
    counted = statistics + torch.stack([torch.ones_like(factor), shares[0]])
    has_overflowed = shares[1] > 0
    is_due = has_overflowed | (counted[0] >= rule.period)
    is_large = has_overflowed | (counted[1] > rule.max_share * counted[0])
    total = factor * loss_scaling
    smaller = torch.where(total * 0.5 >= _FLOAT16.tiny, factor * 0.5, factor)
    larger = torch.where(total * 2.0 <= _FLOAT16.max, factor * 2.0, factor)
    changed = torch.where(is_large, smaller, larger)
    return (
        torch.where(is_due, changed, factor),
        torch.where(is_due, torch.zeros_like(counted), counted),
    )
