"""Histograms of exponents, compared with arithmetic on the numbers themselves."""

import math
from collections import Counter

import pytest
import torch

from poptorch_emu.numbers.magnitudes import (
    Magnitudes,
    ScaleLoss,
    TypeRange,
    best_scale,
    scale_losses,
)

HALF = TypeRange.of(torch.float16)


def numbers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(500, generator=generator).double() * 2.0 ** torch.randint(
        -40, 20, (500,), generator=generator
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_range_then_it_is_what_rounding_to_the_type_does(dtype):
    of, facts = TypeRange.of(dtype), torch.finfo(dtype)

    def rounded(value):
        return torch.tensor(value, dtype=torch.float64).to(dtype).double().item()

    assert rounded(2.0**of.overflow) == math.inf and rounded(2.0 ** (of.overflow - 1)) < math.inf
    assert 2.0**of.normal == facts.smallest_normal
    assert rounded(1.5 * 2.0 ** (of.zero - 1)) == 0.0 and rounded(1.5 * 2.0**of.zero) > 0.0


def test_magnitudes_then_each_number_is_counted_by_its_exponent():
    values = torch.cat([numbers(), torch.tensor([0.0, -0.0, math.inf, math.nan]).double()])
    found = Magnitudes.of(values.reshape(2, -1))
    sizes = [abs(v) for v in values.tolist() if v and math.isfinite(v)]
    assert found.counts == Counter(math.floor(math.log2(size)) for size in sizes)
    assert (found.num_zero, found.num_nonfinite, found.num_nonzero) == (2, 2, len(sizes))
    assert (found.smallest, found.largest) == (min(sizes), max(sizes))


@pytest.mark.parametrize("shift", [-7, 0, 12])
def test_shares_when_numbers_are_scaled_then_they_are_those_of_the_product(shift):
    values, found = numbers(1), Magnitudes.of(numbers(1))
    product = (values * 2.0**shift).abs()
    short = product.half().double()
    # The tolerance allows for one number between 65,520 and 65,536.
    overflow = short.isinf().double().mean().item()
    assert found.overflow(HALF, shift) == pytest.approx(overflow, abs=1.5 / 500)
    assert found.flushed(HALF, shift) == pytest.approx((short == 0).double().mean().item())
    below = (product < 2.0**-14).double().mean().item()
    assert found.underflow(HALF, shift) == pytest.approx(below)
    parts = found.flushed(HALF, shift) + found.subnormal(HALF, shift)
    assert found.underflow(HALF, shift) == pytest.approx(parts)


def test_magnitudes_of_several_then_they_are_those_of_all_numbers():
    one, two = numbers(2), numbers(3)
    together = Magnitudes.together([Magnitudes.of(one), Magnitudes.of(two)])
    assert together == Magnitudes.of(torch.cat([one, two]))


def test_magnitudes_when_there_are_none_then_nothing_is_lost():
    found = Magnitudes.of(torch.zeros(3))
    assert (found.num_zero, found.counts, found.underflow(HALF)) == (3, {}, 0.0)
    assert Magnitudes.of(torch.empty(0)) == Magnitudes.together([])


def test_best_scale_then_no_other_loses_less_and_nothing_overflows():
    gradients = Magnitudes.of(torch.tensor([2.0**-20, 2.0**-9, 2.0**-3]))
    losses = scale_losses(gradients, HALF)
    best = best_scale(losses)
    # From the scale 2**6 on no gradient is below 2**-14, and the largest is far from 2**16.
    assert best == ScaleLoss(6, 0.0, 0.0)
    assert best.scale == 64.0


def test_best_scale_when_numbers_are_too_far_apart_then_overflow_counts_first():
    gradients = Magnitudes.of(torch.tensor([2.0**-40, 2.0**-30, 2.0**10, 2.0**10]))
    best = best_scale(scale_losses(gradients, HALF))
    assert (best.exponent, best.underflow, best.overflow) == (0, 0.5, 0.0)


@pytest.mark.parametrize(("exponent", "expected"), [(20, -5), (30, None)])
def test_best_scale_when_gradients_are_huge_then_it_is_below_one_or_none(exponent, expected):
    best = best_scale(scale_losses(Magnitudes.of(torch.tensor([2.0**exponent])), HALF))
    assert (best and best.exponent) == expected
