"""Bounds of rounding, compared with exact rational arithmetic and sums in other orders."""

import math
from fractions import Fraction

import pytest
import torch

from poptorch_emu.numbers.rounding import Exact, gamma, likely_gamma, underflow, unit_roundoff
from poptorch_emu.numbers.run_values import Expectation
from poptorch_emu.numbers.verdicts import Verdict, judged

aten = torch.ops.aten
UNIT = unit_roundoff(torch.float32)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expectation(target, *args):
    return Expectation(Exact(target, args, {}), [], [a.dtype for a in args if hasattr(a, "dtype")])


@pytest.mark.parametrize("num_terms", [1, 7, 4096])
def test_gamma_then_it_is_the_closed_form(num_terms):
    product = num_terms * Fraction(1, 2**24)
    assert gamma(num_terms, UNIT) == pytest.approx(float(product / (1 - product)), rel=1e-15)


def test_gamma_when_there_are_more_terms_than_the_type_can_tell_then_there_is_no_bound():
    half = unit_roundoff(torch.float16)
    assert half == 2.0**-11
    assert gamma(2047, half) == pytest.approx(2047.0)
    assert gamma(2048, half) == math.inf
    assert likely_gamma(2048, half) == pytest.approx(6 * math.sqrt(2048) * half)


def test_underflow_then_it_is_the_distance_of_subnormal_numbers():
    assert underflow(torch.float16) == 2.0**-24
    assert underflow(torch.float32) == 2.0**-149


def test_sum_when_each_addition_rounds_the_same_way_then_the_bound_holds_and_is_near():
    # Each term is lost, because it is half a unit of the last place of the sum: n - 1 errors of u.
    num_terms = 1025
    terms = torch.full((num_terms,), UNIT)
    terms[0] = 1.0
    total = torch.zeros(())
    for term in terms:
        total = total + term
    exact = sum(Fraction(term) for term in terms.tolist())
    off = float(exact - Fraction(total.item()))
    assert off == (num_terms - 1) * UNIT
    bound = expectation(aten.sum.default, terms).bound(0, torch.float32).tight.item()
    assert off <= bound <= 1.01 * off


def test_judged_when_a_value_is_at_the_bound_then_it_is_reordered_and_beyond_it_is_different():
    expected = expectation(aten.mm.default, random(4, 300), random(300, 5, seed=1))
    exact, bound = expected.results[0], expected.bound(0, torch.float32).tight
    off = (bound / UNIT).floor() * UNIT
    within = (exact + 0.98 * off).float()
    assert judged(expected, 0, within) is Verdict.REORDERED
    beyond = within.clone()
    beyond[2, 3] = (exact + 1.1 * off).float()[2, 3]
    assert judged(expected, 0, beyond) is Verdict.DIFFERENT


@pytest.mark.parametrize(
    ("target", "args", "num_terms"),
    [
        (aten.mm.default, (random(3, 40), random(40, 6)), 40),
        (aten.addmm.default, (random(6), random(3, 40), random(40, 6)), 41),
        (aten.bmm.default, (random(2, 3, 40), random(2, 40, 6)), 40),
        (aten.sum.default, (random(50),), 50),
        (
            aten.convolution.default,
            (
                random(1, 4, 9, 9),
                random(8, 2, 3, 3),
                None,
                [1, 1],
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                2,
            ),
            18,
        ),
    ],
    ids=["mm", "addmm", "bmm", "sum", "convolution of groups"],
)
def test_bound_of_products_then_it_counts_the_terms_of_each_sum(target, args, num_terms):
    magnitudes = [a.double().abs() if isinstance(a, torch.Tensor) else a for a in args]
    scale = target(*magnitudes)
    bound = expectation(target, *args).bound(0, torch.float32).tight
    # The bound counts one term more, and adds the underflow of a type.
    expected = gamma(num_terms + 1, UNIT) * scale + underflow(torch.float32)
    torch.testing.assert_close(bound, expected, rtol=1e-12, atol=0.0)


def reordered(values, order):
    """Returns a product of two matrices whose terms are added one by one in the given order."""
    left, right = values
    total = torch.zeros(left.size(0), right.size(1))
    for position in order:
        total = total + left[:, position : position + 1] * right[position : position + 1]
    return total


@pytest.mark.parametrize("seed", range(5))
def test_product_when_terms_are_added_in_any_order_then_it_is_reordered_sums(seed):
    values = random(8, 500, seed=seed) * 100, random(500, 8, seed=seed + 50) + 3
    order = torch.randperm(500, generator=torch.Generator().manual_seed(seed)).tolist()
    expected = expectation(aten.mm.default, *values)
    assert judged(expected, 0, reordered(values, order)) is Verdict.REORDERED
    # A missing term of usual size is too large to be a rounding error.
    assert judged(expected, 0, reordered(values, order[:-1])) is Verdict.DIFFERENT


def test_product_when_halves_are_added_in_half_then_it_is_less_precision():
    left, right = random(8, 400).half(), random(400, 8, seed=1).half()
    expected = expectation(aten.mm.default, left, right)
    wide = (left.float() @ right.float()).half()
    total = torch.zeros(8, 8, dtype=torch.float16)
    for position in range(400):
        total = total + left[:, position : position + 1] * right[position : position + 1]
    assert judged(expected, 0, wide) is Verdict.REORDERED
    assert judged(expected, 0, total) is Verdict.LESS_PRECISION
    assert judged(expected, 0, wide + wide.abs().max()) is Verdict.DIFFERENT


UNARY = ["exp", "tanh", "sigmoid", "gelu", "silu", "rsqrt", "log1p", "erf", "sin", "expm1"]


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions_when_float32_computes_them_then_they_are_within_the_bound(name):
    target = getattr(aten, name).default
    values = torch.cat([random(4000) * 4, torch.linspace(-30, 30, 4001)]).reshape(3, -1)
    values = values.abs() if name in ("rsqrt", "log1p") else values
    expected = expectation(target, values)
    found = target(values)
    finite = found.isfinite()
    assert judged(expected, 0, found) is Verdict.REORDERED
    wrong = torch.where(finite, found * (1 + 1e-4), found)
    assert judged(expected, 0, wrong) is Verdict.DIFFERENT


def norm_of(values):
    return aten.native_layer_norm.default(values, [64], None, None, 1e-5)


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_norm_when_float32_computes_it_then_its_bound_knows_the_cancellation(shift):
    values = random(10, 64) + shift
    expected = expectation(aten.native_layer_norm.default, values, [64], None, None, 1e-5)
    written_out = (values - values.mean(-1, keepdim=True)) / torch.sqrt(
        values.var(-1, correction=0, keepdim=True) + 1e-5
    )
    assert judged(expected, 0, norm_of(values)[0]) is Verdict.REORDERED
    assert judged(expected, 0, written_out) is Verdict.REORDERED
    assert judged(expected, 0, norm_of(values)[0] + 0.05) is Verdict.DIFFERENT


def test_softmax_when_it_is_over_another_axis_then_it_is_different():
    values = random(12, 12)
    expected = expectation(aten._softmax.default, values, -1, False)
    assert judged(expected, 0, values.softmax(-1)) is Verdict.REORDERED
    assert judged(expected, 0, values.softmax(0)) is Verdict.DIFFERENT


def test_choices_of_numbers_then_they_have_no_rounding():
    values = random(40)
    expected = expectation(aten.relu.default, values)
    assert judged(expected, 0, values.relu()) is Verdict.REORDERED
    off = values.relu()
    off[off.argmax()] = torch.nextafter(off.max(), torch.tensor(9.0))
    assert judged(expected, 0, off) is Verdict.DIFFERENT


def test_whole_numbers_then_they_are_compared_as_they_are():
    values = random(9)
    expected = expectation(aten.argmax.default, values)
    assert judged(expected, 0, values.argmax()) is Verdict.REORDERED
    assert judged(expected, 0, values.argmax() + 1) is Verdict.DIFFERENT
