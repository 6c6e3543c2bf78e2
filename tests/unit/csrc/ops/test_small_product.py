"""Small products of gradients, and sums of columns beside them, by a kernel of the engine's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gradient_product import (
    assert_bits_are_the_same_wherever_operands_lie,
    assert_is_product,
    operands,
)

from poptorch_emu import _C
from poptorch_emu.engine.rewrites.gradient_sums import COLUMN_SUMS, GRADIENT_PRODUCT

pytestmark = pytest.mark.skipif(_C.vector_width() == 0, reason="our kernel is for wide vectors")

DEPTHS = st.integers(1, 70) | st.sampled_from([127, 128, 255, 256])
ROWS = st.integers(1, 70) | st.sampled_from([127, 250])
# Whole lines of a cache; a product of others is PyTorch's.
COLUMNS = st.integers(1, 12).map(lambda lines: 16 * lines)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@settings(max_examples=150)
@given(DEPTHS, ROWS, COLUMNS)
def test_product_of_any_size_then_is_that_of_pytorch(depth: int, rows: int, columns: int) -> None:
    left, right = operands(depth, rows, columns)
    assert_is_product(GRADIENT_PRODUCT(left, right), left, right)


@settings(max_examples=150)
@given(DEPTHS, ROWS, st.booleans())
def test_sums_of_columns_then_have_the_bits_of_pytorch(
    depth: int, width: int, are_parts: bool
) -> None:
    left, _ = operands(depth, 3 * width if are_parts else width, 16)
    columns = left.t()[:, width : 2 * width] if are_parts else left.t()
    assert torch.equal(COLUMN_SUMS(columns, 16), columns.sum(0))


@pytest.mark.parametrize("width", [1, 3, 8, 33, 64])
def test_sums_of_columns_that_lie_otherwise_then_have_the_bits_of_pytorch(width: int) -> None:
    for columns in (
        torch.randn(width, 21).t(),
        torch.randn(1, width).expand(21, width),
        torch.randn(21, 1).expand(21, width),
        torch.randn(1, 1).expand(21, width),
        torch.complex(torch.zeros(21, width), torch.randn(21, width)).conj().imag,
    ):
        assert torch.equal(COLUMN_SUMS(columns, 16), columns.sum(0))


@pytest.mark.parametrize("size", [(8, 64, 64), (128, 96, 128), (256, 61, 112)], ids=str)
def test_product_when_operands_lie_otherwise_then_has_the_same_bits(size) -> None:
    assert_bits_are_the_same_wherever_operands_lie(size)
    left, right = operands(*size)
    negated = torch.complex(torch.zeros_like(right), -right).conj().imag
    assert negated.is_neg()
    assert torch.equal(GRADIENT_PRODUCT(left, negated), GRADIENT_PRODUCT(left, right))


def test_product_on_several_threads_then_has_the_same_bits() -> None:
    left, right = operands(128, 120, 128)  # Nearly two million multiplications.
    expected = GRADIENT_PRODUCT(left, right)
    torch.set_num_threads(3)
    assert torch.equal(GRADIENT_PRODUCT(left, right), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_product_when_an_operand_is_not_finite_then_its_row_and_column_are_not(value) -> None:
    left, right = operands(40, 61, 80)
    left[5, 38], right[3, 9] = value, value
    product = GRADIENT_PRODUCT(left, right)
    wrong = torch.zeros(61, 80, dtype=torch.bool)
    wrong[5], wrong[:, 9] = True, True
    assert torch.equal(~product.isfinite(), wrong)
