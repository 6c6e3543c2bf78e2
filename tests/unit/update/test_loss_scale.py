"""The rule of the automatic loss scale against a reference for plain Python numbers."""

from __future__ import annotations

import math
import random

import pytest
import torch

from poptorch_emu.update.formulas.loss_scale import LossScaleRule, count_large, next_factor

pytestmark = pytest.mark.feature("Automatic loss scaling", fidelity="modelled")


def reference(
    rule: LossScaleRule, windows: list[tuple[float, float]], scaling: float
) -> list[float]:
    """Returns the factor after each window, from the shares of large and overflowed elements."""
    factors, factor, seen = [], 1.0, []
    for large, overflowed in windows:
        seen.append(large)
        if overflowed > 0 or len(seen) == rule.period:
            mean = math.fsum(seen) / len(seen)
            proposed = factor * (0.5 if overflowed > 0 or mean > rule.max_share else 2.0)
            if 2.0**-14 <= proposed * scaling <= 65504:
                factor = proposed
            seen = []
        factors.append(factor)
    return factors


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize("scaling", [1.0, 3.0, 4096.0])
def test_factor_when_followed_over_windows_then_equals_the_reference(
    period: int, scaling: float
) -> None:
    rule = LossScaleRule(max_share=0.25, period=period)
    chooser = random.Random(period)
    windows = [
        (chooser.choice([0.0, 0.125, 0.5, 1.0]), chooser.choice([0.0] * 5 + [0.5]))
        for _ in range(60)
    ]
    windows += [(0.0, 0.0)] * 40 * period + [(1.0, 1.0)] * 40
    factor, statistics, found = torch.ones(()), torch.zeros(2), []
    for window in windows:
        shares = torch.tensor(window)
        factor, statistics = next_factor(rule, factor, statistics, shares, scaling)
        found.append(factor.item())
    assert found == reference(rule, windows, scaling)
    assert max(found) * scaling <= 65504 < max(found) * scaling * 2
    assert min(found) * scaling >= 2.0**-14 > min(found) * scaling / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_counts_when_taken_then_of_all_gradients_and_overflow_is_large(dtype: torch.dtype) -> None:
    gradients = [
        torch.tensor([[8188.0, -8188.0, 8180.0], [0.0, 1.0, -9000.0]], dtype=dtype),
        torch.tensor([math.inf, -math.inf, math.nan, 5.0], dtype=dtype),
        torch.tensor(7.0, dtype=dtype),
    ]
    counts = count_large(gradients, LossScaleRule().edge)
    assert counts.dtype is torch.float32 and counts.tolist() == [6.0, 3.0]


def test_counts_when_the_edge_is_beyond_float16_then_only_overflow_is_large() -> None:
    gradients = [torch.tensor([65504.0, math.inf, 1.0], dtype=torch.float16)]
    assert count_large(gradients, 2.0**20).tolist() == [1.0, 1.0]
