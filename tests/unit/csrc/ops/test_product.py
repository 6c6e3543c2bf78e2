"""Products by the given kernel: PyTorch's numbers, for any layout of the operands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import LIBRARY, PANELS, SMALL, needs_vectors

from poptorch_emu import _C  # Defines the operators, too.

multiply = torch.ops.poptorch_emu.product
column_sums = torch.ops.poptorch_emu.column_sums

OURS = [
    pytest.param(SMALL, id="small", marks=needs_vectors),
    pytest.param(PANELS, id="panels", marks=needs_vectors),
]
ALL = [pytest.param(LIBRARY, id="library"), *OURS]


def operands(
    depth: int, rows: int, columns: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a left matrix that is transposed in memory, and a right matrix."""
    generator = torch.Generator().manual_seed(depth * rows + columns)
    left = torch.randn(depth, rows, generator=generator, dtype=torch.float64)
    right = torch.randn(depth, columns, generator=generator, dtype=torch.float64)
    return left.to(dtype).t(), right.to(dtype)


def assert_is_product(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Compares with the product in float64; rounding grows with the size of the terms."""
    exact = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    bound = magnitude * torch.finfo(left.dtype).eps * (2 + left.shape[1] ** 0.5)
    assert product.dtype is left.dtype and product.is_contiguous()
    assert ((product.double() - exact).abs() <= bound).all()


# Sizes around the edges of tiles and blocks.
sizes = st.sampled_from([1, 7, 8, 31, 32, 33, 96, 120, 511, 512, 520, 1024, 1056])
lines = st.integers(1, 12).map(lambda count: 16 * count) | st.sampled_from([512, 1056])
depths = st.integers(1, 70) | st.sampled_from([127, 255, 256, 257, 700])


@pytest.mark.parametrize("kernel", ALL)
@settings(max_examples=60)
@given(depths, sizes | st.integers(1, 70), lines, st.booleans())
def test_product_of_any_size_then_is_that_of_pytorch(
    kernel: int, depth: int, rows: int, columns: int, is_transposed: bool
) -> None:
    left, right = operands(depth, rows, columns)
    left = left if is_transposed else left.contiguous()
    assert_is_product(multiply(left, right, kernel), left, right)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("size", [(8, 64, 64), (300, 7, 512), (1, 33, 16)], ids=str)
def test_product_with_a_row_then_each_row_has_it_added(
    kernel: int, size: tuple[int, int, int]
) -> None:
    left, right = operands(*size)
    row = torch.randn(2, size[2]).t()[:, 0]
    found, product = multiply(left, right, kernel, row), multiply(left, right, kernel)
    assert found.is_contiguous() and found.shape == product.shape
    exact = left.double() @ right.double() + row
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.equal(multiply(left, right, kernel, torch._neg_view(-row)), found)
    # The depth fits in one block, so each element is complete before the row is added.
    if size[0] <= 256:
        assert kernel == LIBRARY or torch.equal(found, product + row)


@pytest.mark.parametrize("row", [torch.ones(31), torch.ones(1, 32), torch.ones(32).double()])
def test_product_when_a_row_does_not_fit_then_refused(row: torch.Tensor) -> None:
    left, right = operands(16, 4, 32)
    with pytest.raises(ValueError, match=r"32 columns got a row of shape .* expected float32 .32."):
        multiply(left, right, LIBRARY, row)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_product_when_an_operand_is_not_finite_then_its_row_and_column_are_not(
    kernel: int, value: float
) -> None:
    left, right = operands(300, 127, 256)
    left[5, 280], right[3, 9] = value, value
    wrong = torch.zeros(127, 256, dtype=torch.bool)
    wrong[5], wrong[:, 9] = True, True
    assert torch.equal(~multiply(left, right, kernel).isfinite(), wrong)


# Each size except the first is larger than a block in one dimension.
SIZES = [(8, 64, 64), (1030, 256, 128), (256, 1032, 128), (500, 64, 1056), (1000, 640, 64)]


@pytest.mark.parametrize("kernel", OURS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_product_when_operands_lie_otherwise_then_has_the_same_bits(
    kernel: int, size: tuple[int, int, int]
) -> None:
    left, right = operands(*size)
    expected = multiply(left, right, kernel)
    elsewhere = torch.randn(size[0], size[1] + 3)[:, 3:].copy_(left.t())
    negated = torch.complex(torch.zeros_like(right), -right).conj().imag
    assert negated.is_neg()
    for a in (left.contiguous(), elsewhere.t(), torch._neg_view(-left)):
        assert torch.equal(multiply(a, right, kernel), expected)
    for b in (right.t().contiguous().t(), negated):
        assert torch.equal(multiply(left, b, kernel), expected)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    _C.set_shares_work(True)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("kernel", OURS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_product_when_on_several_threads_then_has_the_same_bits(
    kernel: int, size: tuple[int, int, int]
) -> None:
    left, right = operands(*size)
    expected = multiply(left, right, kernel)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for is_shared in (False, True):
            _C.set_shares_work(is_shared)
            assert torch.equal(multiply(left, right, kernel), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_product_of_another_type_then_is_for_pytorch_alone(dtype: torch.dtype) -> None:
    left, right = operands(64, 128, 256, dtype)
    assert torch.equal(multiply(left, right, LIBRARY), left @ right)
    with pytest.raises(ValueError, match=r"multiplies float32 matrices .* but got (Double|BFloat)"):
        multiply(left, right, SMALL)


@needs_vectors
def test_product_that_a_kernel_cannot_make_then_is_refused() -> None:
    left, right = operands(16, 4, 32)
    for kernel in (LIBRARY, SMALL, PANELS):
        with pytest.raises(ValueError, match=r"but got Float\[4, 16\] and Float\[15, 32\]"):
            multiply(left, right[1:], kernel)
    with pytest.raises(ValueError, match="'small' reads 32 columns for 31, but got 31"):
        multiply(left, right[:, 1:], SMALL)
    with pytest.raises(ValueError, match="'panels' .* of a depth above 0"):
        multiply(left[:, :0], right[:0], PANELS)
    with pytest.raises(ValueError, match="no kernel for products with the number 9"):
        multiply(left, right, 9)


@settings(max_examples=60)
@given(depths, sizes)
def test_sums_of_columns_of_any_size_then_are_those_of_pytorch(depth: int, columns: int) -> None:
    values, _ = operands(columns, depth, 1)
    sums, exact = column_sums(values), values.double().sum(0)
    bound = values.double().abs().sum(0) * torch.finfo(torch.float32).eps * (2 + depth**0.5)
    assert sums.shape == (columns,) and ((sums.double() - exact).abs() <= bound).all()


def test_sums_when_columns_lie_otherwise_then_have_the_same_bits() -> None:
    columns = torch.randn(1000, 200)
    expected = column_sums(columns)
    elsewhere = torch.randn(1000, 203)[:, 3:].copy_(columns)
    for other in (columns.t().contiguous().t(), elsewhere, torch._neg_view(-columns)):
        assert torch.equal(column_sums(other), expected)


def test_sums_when_a_number_is_not_finite_then_only_its_column_is_not() -> None:
    columns = torch.randn(300, 128)
    columns[7, 5], columns[200, 60] = float("nan"), float("inf")
    sums = column_sums(columns)
    assert sums[5].isnan() and sums[60] == float("inf") and sums.isfinite().sum() == 126
