"""Products with a weight that was packed before: PyTorch's numbers, and clear errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import LIBRARY, PANELS, SMALL, needs_mkl, needs_vectors

import poptorch_emu  # noqa: F401  # Defines the operators.

pack_weight = torch.ops.poptorch_emu.pack_weight
packed_linear = torch.ops.poptorch_emu.packed_linear

KERNELS = [
    pytest.param(LIBRARY, id="library", marks=needs_mkl),
    pytest.param(SMALL, id="small", marks=needs_vectors),
    pytest.param(PANELS, id="panels", marks=needs_vectors),
]
each_kernel = pytest.mark.parametrize("kernel", KERNELS)

SIZES = st.integers(1, 3) | st.integers(1, 70)
INPUTS = SIZES | st.integers(257, 300)


def made(*shape: int, is_transposed: bool = False) -> torch.Tensor:
    return torch.randn(*reversed(shape)).t() if is_transposed else torch.randn(*shape)


@each_kernel
@settings(max_examples=40)
@given(
    SIZES,
    INPUTS,
    SIZES,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 999),
)
def test_product_then_has_the_numbers_of_pytorch(
    kernel: int,
    rows: int,
    inputs: int,
    outputs: int,
    has_bias: bool,
    is_x_transposed: bool,
    is_weight_transposed: bool,
    is_weight_half: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    x = made(rows, inputs, is_transposed=is_x_transposed)
    weight = made(outputs, inputs, is_transposed=is_weight_transposed)
    weight = weight.half() if is_weight_half else weight
    bias = torch.randn(outputs) if has_bias else None
    found = packed_linear(x, pack_weight(weight, kernel, rows), bias, outputs, kernel)
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert found.is_contiguous()


@each_kernel
def test_product_of_rows_that_are_one_then_has_the_numbers_of_pytorch(kernel: int) -> None:
    x, weight = torch.randn(1, 6).expand(4, 6), torch.randn(1, 6).expand(3, 6)
    found = packed_linear(x, pack_weight(weight, kernel, 4), None, 3, kernel)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight))


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("outputs", [3, 16])
def test_weight_when_its_memory_has_the_negated_numbers_then_is_what_it_shows(
    kernel: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(4, 6), torch._neg_view(torch.randn(outputs, 6).to(dtype))
    found = packed_linear(x, pack_weight(weight, kernel, 4), None, outputs, kernel)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight.clone().float()))


@each_kernel
def test_packed_weight_then_does_not_change_with_the_weight(kernel: int) -> None:
    weight, x = torch.randn(48, 32), torch.eye(32)
    packed, before = pack_weight(weight, kernel, 32), weight.clone()
    weight.add_(1.0)
    assert torch.equal(packed_linear(x, packed, None, 48, kernel).t(), before)


@each_kernel
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_product_on_any_number_of_threads_then_has_the_same_numbers(
    num_threads: int, kernel: int
) -> None:
    """Our kernels have the same bits; MKL promises that only for one number of threads.

    For example, with `MKL_CBWR=COMPATIBLE` three threads divide the depth of this product.
    """
    torch.manual_seed(0)
    x, weight, bias = torch.randn(256, 2048), torch.randn(512, 2048), torch.randn(512)
    packed = pack_weight(weight, kernel, 256)
    expected = packed_linear(x, packed, bias, 512, kernel)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        found, again = (packed_linear(x, packed, bias, 512, kernel) for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, again)
    if kernel == LIBRARY:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)
    else:
        assert torch.equal(found, expected)


@each_kernel
def test_weight_that_is_not_packed_for_the_kernel_then_is_refused(kernel: int) -> None:
    with pytest.raises(
        ValueError, match=r"weight of shape \[3, 4\]; that of 3 outputs for rows of"
    ):
        packed_linear(torch.randn(5, 4), torch.randn(3, 4), None, 3, kernel)


@each_kernel
def test_errors_then_say_what_was_found(kernel: int) -> None:
    with pytest.raises(ValueError, match=r"pack_weight got a weight of shape \[2, 3, 4\]"):
        pack_weight(torch.zeros(2, 3, 4), kernel, 1)
    with pytest.raises(ValueError, match="and type Double for 1 rows; expected numbers of float32"):
        pack_weight(torch.zeros(2, 3, dtype=torch.float64), kernel, 1)
    with pytest.raises(ValueError, match=r"and type Float for 0 rows"):
        pack_weight(torch.zeros(2, 3), kernel, 0)
    packed = pack_weight(torch.zeros(64, 2), kernel, 2)
    with pytest.raises(ValueError, match=r"bias of shape \[1\]; expected \[64\]"):
        packed_linear(torch.ones(2, 2), packed, torch.randn(1), 64, kernel)
