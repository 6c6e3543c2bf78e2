"""Products with a weight that was packed before: PyTorch's numbers, and errors that say what."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.panels import panels

from poptorch_emu import _C  # Defines the operators, too.

pack_weight = torch.ops.poptorch_emu.pack_weight
packed_linear = torch.ops.poptorch_emu.packed_linear

small = pytest.mark.skipif(_C.vector_width() == 0, reason="our kernel is for wide vectors")

# Small ones have a kernel of the engine's, those with more inputs are PyTorch's.
SIZES = st.integers(1, 3) | st.integers(1, 70)
INPUTS = SIZES | st.integers(257, 300)


def made(*shape: int, is_transposed: bool = False) -> torch.Tensor:
    return torch.randn(*reversed(shape)).t() if is_transposed else torch.randn(*shape)


@settings(max_examples=80)
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
    found = packed_linear(x, pack_weight(weight, rows), bias, outputs)
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert found.is_contiguous()


def test_product_of_rows_that_are_one_then_has_the_numbers_of_pytorch() -> None:
    x, weight = torch.randn(1, 6).expand(4, 6), torch.randn(1, 6).expand(3, 6)
    found = packed_linear(x, pack_weight(weight, 4), None, 3)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("outputs", [3, 16])
def test_weight_when_its_memory_has_the_negated_numbers_then_is_what_it_shows(
    outputs: int, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(4, 6), torch._neg_view(torch.randn(outputs, 6).to(dtype))
    found = packed_linear(x, pack_weight(weight, 4), None, outputs)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight.clone().float()))


def test_packed_weight_then_does_not_change_with_the_weight() -> None:
    weight, x = torch.randn(48, 32), torch.eye(32)
    packed, before = pack_weight(weight, 32), weight.clone()
    weight.add_(1.0)
    assert torch.equal(packed_linear(x, packed, None, 48).t(), before)


def test_weight_when_it_is_only_transposed_then_is_multiplied_all_the_same() -> None:
    x, weight, bias = torch.randn(5, 300), torch.randn(3, 300), torch.randn(3)
    expected = torch.nn.functional.linear(x, weight, bias)
    found = packed_linear(x, weight.t().contiguous(), bias, 3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(768, 256), (1, 70000), (300, 1), (0, 300)])
def test_weight_when_the_library_does_not_pack_then_is_its_transpose(
    shape: tuple[int, int],
) -> None:
    weight = torch.randn(shape)
    with panels(False):
        packed, before = pack_weight(weight, 128), weight.clone()
    if packed.dim() == 1:
        pytest.skip("The library packs on this processor.")
    weight.add_(1.0)
    assert torch.equal(packed[:, : shape[0]], before.t())
    assert packed.nbytes == before.nbytes or shape == (300, 1)  # Of a small one whole lines.


@small
def test_small_product_when_the_bias_is_too_short_then_says_so() -> None:
    packed = pack_weight(torch.zeros(64, 2), 2)
    with pytest.raises(ValueError, match=r"bias of shape \[1\]; expected \[64\]"):
        packed_linear(torch.ones(2, 2), packed, torch.randn(1), 64)


@small
def test_small_product_when_the_weight_is_not_packed_for_it_then_says_so() -> None:
    with pytest.raises(ValueError, match=r"weight of shape \[3, 4\]; that of 3 outputs for 5 rows"):
        packed_linear(torch.randn(5, 4), torch.randn(3, 4), None, 3)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_product_then_has_the_same_bits_on_any_number_of_threads(num_threads: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(256, 2048), torch.randn(512, 2048), torch.randn(512)
    expected = packed_linear(x, pack_weight(weight, 256), bias, 512)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(packed_linear(x, pack_weight(weight, 256), bias, 512), expected)
    finally:
        torch.set_num_threads(before)


def test_errors_then_say_what_was_found() -> None:
    with pytest.raises(ValueError, match=r"pack_weight got a weight of shape \[2, 3, 4\]"):
        pack_weight(torch.zeros(2, 3, 4), 1)
    with pytest.raises(ValueError, match="and type Double; expected float32 or float16"):
        pack_weight(torch.zeros(2, 3, dtype=torch.float64), 1)
    with pytest.raises(ValueError, match=r"pack_weight packs for 1 to 2147483647 rows, but got 0"):
        pack_weight(torch.zeros(2, 3), 0)
