"""Gradients of linear layers: the numbers of PyTorch's product, wherever the operands lie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poptorch_emu import _C
from poptorch_emu.engine.rewrites.gradient_sums import COLUMN_SUMS, GRADIENT_PRODUCT

# Elsewhere the product is PyTorch's, whose bits may depend on where the operands lie.
with_our_kernel = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512"
    and not torch.ops.poptorch_emu.is_by_panels(1000, 1000, 1000),
    reason="this processor has no kernel of ours",
)


def operands(
    depth: int, rows: int, columns: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a left side that lies transposed in memory, and a right one."""
    generator = torch.Generator().manual_seed(depth * rows + columns)
    left = torch.randn(depth, rows, generator=generator, dtype=torch.float64)
    right = torch.randn(depth, columns, generator=generator, dtype=torch.float64)
    return left.to(dtype).t(), right.to(dtype)


def assert_is_product(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Compares with the product in float64; rounding grows with what is added up."""
    exact = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    bound = magnitude * torch.finfo(left.dtype).eps * (2 + left.shape[1] ** 0.5)
    assert product.dtype is left.dtype and product.is_contiguous()
    assert ((product.double() - exact).abs() <= bound).all()


def assert_bits_are_the_same_wherever_operands_lie(size: tuple[int, int, int]) -> None:
    left, right = operands(*size)
    expected = GRADIENT_PRODUCT(left, right)
    elsewhere = torch.randn(size[0], size[1] + 3)[:, 3:]
    elsewhere.copy_(left.t())
    for other in (left.contiguous(), elsewhere.t()):
        assert torch.equal(GRADIENT_PRODUCT(other, right), expected)
    assert torch.equal(GRADIENT_PRODUCT(left, right.t().contiguous().t()), expected)


# Around the edges of tiles and blocks.
sizes = st.sampled_from([1, 7, 8, 31, 32, 33, 96, 120, 511, 512, 520, 1024, 1056])
depths = st.sampled_from([1, 2, 15, 16, 17, 255, 256, 257, 700])


@settings(max_examples=60)
@given(depths, sizes, sizes)
def test_product_of_any_size_then_is_that_of_pytorch(depth: int, rows: int, columns: int) -> None:
    left, right = operands(depth, rows, columns)
    assert_is_product(GRADIENT_PRODUCT(left, right), left, right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_product_of_another_type_then_is_that_of_pytorch(dtype: torch.dtype) -> None:
    left, right = operands(64, 128, 256, dtype)
    assert torch.equal(GRADIENT_PRODUCT(left, right), left @ right)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_product_when_an_operand_is_not_finite_then_its_row_and_column_are_not(value) -> None:
    left, right = operands(300, 127, 255)
    left[5, 280], right[3, 9] = value, value
    product = GRADIENT_PRODUCT(left, right)
    wrong = torch.zeros(127, 255, dtype=torch.bool)
    wrong[5], wrong[:, 9] = True, True
    assert torch.equal(~product.isfinite(), wrong)


# Each is larger than a block of either side in one way.
LARGE = [(1030, 256, 128), (256, 1032, 128), (500, 64, 1056), (1000, 640, 64)]


@with_our_kernel
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_product_when_operands_lie_otherwise_then_has_the_same_bits(size) -> None:
    assert_bits_are_the_same_wherever_operands_lie(size)


@with_our_kernel
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_product_when_on_several_threads_then_has_the_same_bits(size) -> None:
    left, right = operands(*size)
    expected = GRADIENT_PRODUCT(left, right)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for is_shared in (False, True):
                _C.set_shares_work(is_shared)
                assert torch.equal(GRADIENT_PRODUCT(left, right), expected)
    finally:
        torch.set_num_threads(threads)
        _C.set_shares_work(True)


@settings(max_examples=60)
@given(depths, sizes, sizes)
def test_sums_of_columns_of_any_size_then_are_those_of_pytorch(
    depth: int, columns: int, others: int
) -> None:
    left, _ = operands(depth, columns, others)
    sums = COLUMN_SUMS(left.t(), others)
    exact = left.double().sum(1)
    bound = left.double().abs().sum(1) * torch.finfo(torch.float32).eps * (2 + depth**0.5)
    assert sums.shape == (columns,) and ((sums.double() - exact).abs() <= bound).all()


@with_our_kernel
def test_sums_when_columns_lie_otherwise_then_have_the_same_bits() -> None:
    columns = operands(1000, 200, 512)[0].t()
    expected = COLUMN_SUMS(columns, 512)
    elsewhere = torch.randn(1000, 203)[:, 3:]
    elsewhere.copy_(columns)
    for other in (columns.t().contiguous().t(), elsewhere):
        assert torch.equal(COLUMN_SUMS(other, 512), expected)


def test_sums_when_a_number_is_not_finite_then_only_its_column_is_not() -> None:
    columns = operands(300, 128, 1024)[0].t().clone()
    columns[7, 5], columns[200, 60] = float("nan"), float("inf")
    sums = COLUMN_SUMS(columns, 1024)
    assert sums[5].isnan() and sums[60] == float("inf") and sums.isfinite().sum() == 126
