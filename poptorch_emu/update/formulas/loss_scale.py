"""The rule of an automatic loss scale, which follows the size of the gradients.

PopTorch documents that the scale is doubled and halved, and the names of the settings. The rest of
the rule is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Names of the variables on the device, and of the scale in use, as anchors see them.
FACTOR = "lossScaleUpdateFactor"
STATISTICS = "lossScaleStatistics"
TOTAL = "finalLossScale"

# Variables that the host keeps with the optimiser's states, but hides from `state_dict`.
KEPT_VARIABLES = frozenset({FACTOR, STATISTICS})

_FLOAT16 = torch.finfo(torch.float16)


@dataclass(frozen=True)
class LossScaleRule:
    """The rule for changes of the scale. The defaults are ours.

    Attributes:
        bin_edge: least magnitude of a large element, as a fraction of the largest float16 number.
        max_share: largest share of large elements that does not halve the scale.
        period: number of windows between two changes.
    """

    bin_edge: float = 0.125
    max_share: float = 1e-7
    period: int = 1

    @property
    def edge(self) -> float:
        """Least magnitude of a large element."""
        return self.bin_edge * _FLOAT16.max


def count_large(gradients: list[Tensor], edge: float) -> Tensor:
    """Returns how many elements have at least the magnitude `edge`, and how many are not finite.

    Args:
        gradients: gradients of any shapes and floating-point types.
        edge: least magnitude of a large element. Elements that are not finite count as large.

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
    """Returns the factor and the statistics after a window.

    Args:
        rule: rule for changes of the factor.
        factor: factor of this window, 0-d.
        statistics: number of windows since the last change, and the sum of their shares of large
            elements; shape (2,).
        shares: shares of the elements that are large, and that are not finite; shape (2,).
        loss_scaling: number that the factor multiplies. The product stays within float16's normal
            range.
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
