"""Joined parts of a gradient have the bits of their sum with zeros elsewhere."""

from __future__ import annotations

import pytest
import torch

import poptorch_emu._C  # noqa: F401  (it registers the operators)

joined = torch.ops.poptorch_emu.joined_gradients
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def signed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers among which are both zeros and infinity.

    The bits of a NaN after an addition depend on the processor, so there is no NaN.
    """
    x = torch.randn(shape).to(dtype)
    x.view(-1)[:3] = torch.tensor([0.0, -0.0, float("inf")])
    return x


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    as_numbers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(one.contiguous().view(as_numbers), other.contiguous().view(as_numbers))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_when_joined_then_have_the_bits_of_the_sum_of_slices(dim, dtype):
    parts = []
    for size in (1, 3, 2):
        shape = [5, 5, 5]
        shape[dim] = size
        parts.append(signed(tuple(shape), dtype))
    whole = [5, 5, 5]
    whole[dim] = 6
    slices = torch.ops.aten.slice_backward
    expected = (
        slices(parts[2], whole, dim, 4, 6, 1) + slices(parts[0], whole, dim, 0, 1, 1)
    ) + slices(parts[1], whole, dim, 1, 4, 1)
    result = joined(parts, dim)
    assert same_bits(result, expected)
    assert result.stride() == expected.stride()


def test_parts_when_permuted_then_the_result_is_contiguous():
    parts = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2)]
    result = joined(parts, 1)
    assert result.is_contiguous()
    assert torch.equal(result, torch.cat(parts, 1))


def test_parts_when_they_do_not_fit_then_is_an_error():
    with pytest.raises(RuntimeError, match=r"dimension 0 alone, not \[2, 3\] and \[2, 4\]"):
        joined([torch.ones(2, 3), torch.ones(2, 4)], 0)
