"""The operator `round_stochastic`: unbiased, exact if possible, and counter-based."""

from __future__ import annotations

import math

import pytest
import torch
from support.philox import words

import poptorch_emu  # noqa: F401  (registers the operators)

round_stochastic = torch.ops.poptorch_emu.round_stochastic
DRAWS = 1_000_000


def rng(seed: int = 7, micro_batch: int = 0) -> torch.Tensor:
    return torch.tensor([seed, micro_batch, 0, 0])


def test_every_code_when_rounded_then_stays() -> None:
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    rounded = round_stochastic(rng(), 0, codes.float())
    number = ~codes.isnan()
    assert number.sum() == 2**16 - 2 * (2**10 - 1)
    assert torch.equal(rounded[number].view(torch.int16), codes[number].view(torch.int16))
    assert rounded[~number].isnan().all()


@pytest.mark.parametrize(
    "value",
    [1.0003, -1.0003, 1 / 3, -123.456, 65503.9, 6.1e-5, 5.97e-8, 3e-8, -1e-7, 2**-14 * 1.0001],
)
def test_value_when_drawn_often_then_mean_is_within_five_sigmas(value: float) -> None:
    single = torch.tensor(value)
    draws = round_stochastic(rng(), 3, single.expand(DRAWS)).double()
    low, high = draws.min().item(), draws.max().item()
    step = high - low
    exact = single.double().item()
    assert low < exact < high and len(draws.unique()) == 2
    # The probability of the upper neighbour is the relative distance of the value from the lower
    # one.
    chance = (exact - low) / step
    sigma = step * math.sqrt(chance * (1 - chance) / DRAWS)
    assert abs(draws.mean().item() - exact) < 5 * sigma
    assert torch.tensor(low).half().nextafter(torch.tensor(math.inf).half()).item() == high


def test_values_when_all_between_neighbours_then_error_is_below_one_step() -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(1)) * 100
    error = (round_stochastic(rng(), 0, values).double() - values.double()).abs()
    step = torch.finfo(torch.float16).eps * torch.exp2(values.double().abs().log2().floor())
    assert (error < step.clamp(min=2.0**-24)).all()
    assert error.max() > 0


@pytest.mark.parametrize("value", [65519.0, 65520.0, 1e9, math.inf, -math.inf, -65520.0])
def test_value_when_beyond_the_largest_then_is_ieee_rounding(value: float) -> None:
    single = torch.tensor([value] * 64)
    assert torch.equal(round_stochastic(rng(), 0, single), single.half())


def rounded_by_definition(value: float, word: int) -> float:
    """The magnitude in steps of float16, plus a random number in [0, 1), cut to an integer."""
    magnitude, sign = abs(value), math.copysign(1.0, value)
    exponent = max(math.frexp(magnitude)[1] - 1, -14)
    step = 2.0 ** (exponent - 10)
    # Number of bits of a float32 that lie below the step; at most 31 random bits are used.
    dropped = min(max(13, 126 - (math.frexp(magnitude)[1] + 126)), 31)
    draw = word % 2**dropped / 2**dropped
    fine = math.floor(magnitude / step * 2**dropped) / 2**dropped
    return sign * math.floor(fine + draw) * step


def test_values_of_all_exponents_then_follow_the_definition_by_the_words_of_philox() -> None:
    generator = torch.Generator().manual_seed(2)
    values = (torch.rand(4000, generator=generator) + 1) * 2.0 ** torch.arange(-40, 15).repeat(73)[
        :4000
    ]
    values[::3] *= -1
    expected = [
        rounded_by_definition(value, word)
        for value, word in zip(values.tolist(), words(len(values), seed=7, op_id=4), strict=True)
    ]
    assert round_stochastic(rng(), 4, values).tolist() == expected


def test_draws_when_threads_differ_then_are_the_same() -> None:
    values = torch.randn(50_000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = round_stochastic(rng(), 5, values)
        torch.set_num_threads(3)
        three = round_stochastic(rng(), 5, values)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)


@pytest.mark.parametrize(
    ("state", "op_id"), [(rng(seed=8), 0), (rng(micro_batch=1), 0), (rng(), 1)]
)
def test_draws_when_seed_step_or_operation_differ_then_differ(
    state: torch.Tensor, op_id: int
) -> None:
    values = torch.full((1000,), 1.0004)
    same = (round_stochastic(state, op_id, values) == round_stochastic(rng(), 0, values)).float()
    assert 0.3 < same.mean() < 0.75
