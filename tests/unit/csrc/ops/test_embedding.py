"""Rows that are fetched ahead, against PyTorch's own lookup."""

from __future__ import annotations

import pytest
import torch

ROWS = 37


def lookup(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.ops.poptorch_emu.embedding(weight, indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (8,), (9,), (3, 40), (2, 0, 5)])
@pytest.mark.parametrize("width", [1, 3, 64, 700])
def test_embedding_of_any_shape_has_pytorchs_rows(
    dtype: torch.dtype, shape: tuple[int, ...], width: int
) -> None:
    weight = torch.randn(ROWS, width).mul(5).to(dtype)
    for index_dtype in (torch.int64, torch.int32):
        indices = torch.randint(ROWS, shape, dtype=index_dtype)
        found, expected = lookup(weight, indices), torch.embedding(weight, indices)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(6, ROWS).t(),
        torch.randn(ROWS, 12)[:, ::2],
        torch.randn(ROWS, 6, dtype=torch.complex64).conj(),
        torch._neg_view(torch.randn(ROWS, 6)),
    ],
    ids=["transposed", "strided", "conjugate", "negative"],
)
def test_embedding_of_tensors_in_another_order_has_pytorchs_rows(weight: torch.Tensor) -> None:
    indices = torch.randint(ROWS, (5, 4)).t()
    assert torch.equal(lookup(weight, indices), torch.embedding(weight, indices))


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_embedding_of_a_row_that_is_not_there_says_which(wrong: int) -> None:
    indices = torch.tensor([0, wrong, 1])
    with pytest.raises(IndexError, match=rf"index out of range.* {wrong} .* {ROWS} rows"):
        lookup(torch.randn(ROWS, 4), indices)
