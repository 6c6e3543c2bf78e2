"""Products by panels: the order of additions, at the edges of tiles, panels and blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import PANELS, needs_vectors
from test_product import assert_is_product, operands

from poptorch_emu import _C

pytestmark = needs_vectors

column_sums = torch.ops.poptorch_emu.column_sums


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.ops.poptorch_emu.product(left, right, PANELS)


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.poptorch_emu.pack_weight(weight, PANELS, 1)


def packed_linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, num_outputs: int
) -> torch.Tensor:
    return torch.ops.poptorch_emu.packed_linear(x, packed, bias, num_outputs, PANELS)


# Sizes around the edges of tiles (4 rows or 6, 24 columns or 64, vectors of 8 or 16), of blocks of
# the depth (256), of rows (256 or 144) and of columns (1,008 or 1,024).
ROWS = st.sampled_from([1, 3, 5, 64, 65, 66, 67, 143, 145, 255, 256, 257, 258, 515, 520])
COLUMNS = st.sampled_from(
    [
        1,
        7,
        9,
        71,
        72,
        73,
        79,
        80,
        81,
        88,
        95,
        104,
        127,
        129,
        1007,
        1009,
        1016,
        1023,
        1025,
        1040,
        1090,
    ]
)
DEPTHS = st.sampled_from([1, 17, 255, 256, 257, 300, 512, 600])


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def bits(values: torch.Tensor) -> torch.Tensor:
    """Returns the bits as integers, so that zeros of different signs differ."""
    return values.view(torch.int32)


def blocks_by_hand(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Adds up in the order of the depth, rounding once for each product and block.

    A product and an addition in float64 are rounded to float32 as a fused one is, but for the few
    that are rounded twice.
    """
    total = torch.zeros(left.shape[0], right.shape[1])
    for first in range(0, left.shape[1], 256):
        block = torch.zeros_like(total)
        for k in range(first, min(first + 256, left.shape[1])):
            term = left[:, k : k + 1].double() * right[k : k + 1].double()
            block = (block.double() + term).float()
        total = block if first == 0 else total + block
    return total


@settings(max_examples=60)
@given(ROWS, DEPTHS, COLUMNS, st.booleans())
def test_product_of_any_size_then_is_that_of_pytorch(
    rows: int, depth: int, columns: int, is_transposed: bool
) -> None:
    left, right = operands(depth, rows, columns)
    left = left if is_transposed else left.contiguous()
    assert_is_product(product(left, right), left, right)


@settings(max_examples=60)
@given(ROWS, DEPTHS, COLUMNS, st.booleans(), st.booleans())
def test_layer_of_any_size_then_is_that_of_pytorch(
    rows: int, inputs: int, outputs: int, has_bias: bool, is_weight_transposed: bool
) -> None:
    x, weight = made(rows, inputs, 1), made(outputs, inputs, 2)
    bias = made(1, outputs, 3)[0] if has_bias else None
    lying = weight.t().contiguous().t() if is_weight_transposed else weight
    packed = pack_weight(lying)
    found = packed_linear(x, packed, bias, outputs)
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    magnitude = x.double().abs() @ weight.t().double().abs() + (0.0 if bias is None else bias.abs())
    bound = magnitude * torch.finfo(torch.float32).eps * (2 + inputs**0.5)
    assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("size", [(70, 300, 80), (260, 700, 1016)], ids=str)
def test_numbers_then_are_added_up_in_the_order_of_the_depth(size: tuple[int, int, int]) -> None:
    rows, depth, columns = size
    left, right = made(rows, depth, 4), made(depth, columns, 5)
    found, expected = product(left, right), blocks_by_hand(left, right)
    assert (found != expected).float().mean() < 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


SIZES = [(256, 600, 512), (600, 512, 1030), (67, 300, 81)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_products_of_the_same_numbers_then_have_the_same_bits(size) -> None:
    rows, depth, columns = size
    left, right = made(rows, depth, 6), made(depth, columns, 7)
    expected = product(left, right)
    elsewhere = torch.randn(depth, columns + 3)[:, 3:].copy_(right)
    negated = torch.complex(torch.zeros_like(left), -left).conj().imag
    assert negated.is_neg()
    for found in (
        product(left.t().contiguous().t(), right),
        product(left, elsewhere),
        product(negated, right),
        packed_linear(left, pack_weight(right.t()), None, columns),
        packed_linear(left, pack_weight(right.t().contiguous()), None, columns),
    ):
        assert torch.equal(bits(found), bits(expected))


def test_zeros_then_have_the_same_sign_in_all_columns() -> None:
    # The products are negative and too small for float32, so they round to -0.
    left, right = torch.full((300, 16), -1e-30), torch.full((16, 1009), 1e-30)
    layer = packed_linear(left, pack_weight(right.t()), None, 1009)
    for found in (product(left, right), layer):
        assert found.count_nonzero() == 0 and found.signbit().all()


# The depth is small, so that little is packed at once.
@pytest.mark.parametrize("size", [(520, 17, 160), (2048, 16, 64), (260, 40, 1100)], ids=str)
def test_first_product_of_a_thread_then_is_that_of_pytorch(size: tuple[int, int, int]) -> None:
    rows, depth, columns = size
    left, right = operands(depth, rows, columns)
    for one in (left, left.contiguous()):
        with ThreadPoolExecutor(1) as thread:
            assert_is_product(thread.submit(product, one, right).result(), left, right)


@pytest.mark.parametrize("is_shared", [False, True])
def test_layer_of_no_rows_then_gives_none(is_shared: bool) -> None:
    packed = pack_weight(torch.randn(96, 300))
    _C.set_shares_work(is_shared)
    try:
        assert packed_linear(torch.randn(0, 300), packed, None, 96).shape == (0, 96)
    finally:
        _C.set_shares_work(True)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_product_then_has_the_same_bits_on_any_number_of_threads(size) -> None:
    rows, depth, columns = size
    left, right, bias = made(rows, depth, 8), made(depth, columns, 9), torch.randn(columns)
    packed = pack_weight(right.t())
    torch.set_num_threads(1)

    def results() -> list[torch.Tensor]:
        columns_of_left = left.t().contiguous()
        layer = packed_linear(left, packed, bias, columns)
        sums = column_sums(columns_of_left)
        return [product(left, right), product(columns_of_left.t(), right), layer, sums]

    expected = results()
    try:
        for count in (2, 3, 5):
            torch.set_num_threads(count)
            for is_shared in (False, True):
                _C.set_shares_work(is_shared)
                assert all(map(torch.equal, results(), expected))
    finally:
        _C.set_shares_work(True)


def test_rows_that_are_one_then_are_multiplied_as_others() -> None:
    left, right = torch.randn(1, 300).expand(128, 300), torch.randn(1, 96).expand(300, 96)
    assert torch.equal(product(left, right), product(left.contiguous(), right.contiguous()))


def test_layer_when_weight_or_bias_do_not_fit_then_says_so() -> None:
    x, packed = torch.randn(64, 300), pack_weight(torch.randn(96, 300))
    shape = re.escape(str(list(packed.shape)))
    with pytest.raises(ValueError, match=rf"of shape {shape}; that of 200 outputs for rows"):
        packed_linear(x, packed, None, 200)
    with pytest.raises(ValueError, match=rf"of shape {shape}; that of 96 outputs for rows"):
        packed_linear(torch.randn(64, 301), packed, None, 96)
    with pytest.raises(ValueError, match=r"bias of shape \[95\]; expected \[96\]"):
        packed_linear(x, packed, torch.randn(95), 96)
