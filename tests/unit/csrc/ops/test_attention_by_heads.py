"""Attention by the engine's own products has the numbers of the formula."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import needs_vectors

import poptorch_emu  # noqa: F401

pytestmark = needs_vectors
attention_by_heads = torch.ops.poptorch_emu.attention_by_heads


def heads(batch: int, count: int, length: int, depth: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, count, length, depth, generator=generator)


def by_formula(query, key, value, scale):
    """Returns softmax(query @ key.T * scale) @ value in float64."""
    query, key, value = query.double(), key.double(), value.double()
    return torch.softmax(query @ key.transpose(2, 3) * scale, dim=-1) @ value


def check(query, key, value, scale):
    result = attention_by_heads(query, key, value, scale)
    assert result.dtype is torch.float32
    wanted = by_formula(query, key, value, scale)
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-5)
    return result


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 3),
    count=st.integers(1, 5),
    num_queries=st.integers(1, 70) | st.just(200),
    num_keys=st.integers(1, 70) | st.sampled_from([197, 300]),
    depth=st.sampled_from([16, 32, 48, 64, 80]),
)
def test_attention_of_any_length_then_has_the_numbers_of_the_formula(
    batch, count, num_queries, num_keys, depth
):
    query = heads(batch, count, num_queries, depth, 0)
    key, value = (heads(batch, count, num_keys, depth, seed) for seed in (1, 2))
    check(query, key, value, 1 / math.sqrt(depth))


def test_scores_of_many_keys_then_are_computed_for_some_queries_at_a_time():
    """The scores are computed in several parts, and the last part has fewer queries."""
    check(heads(1, 2, 33, 16, 0), heads(1, 2, 3000, 16, 1), heads(1, 2, 3000, 16, 2), 0.5)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 2, 0, 3), (0, 1, 2, 3)])
def test_parts_of_one_projection_then_are_read_where_they_are(order):
    """The result has the layout of PyTorch's kernel."""
    memory = torch.randn([[4, 3, 10][order.index(dim)] for dim in range(3)] + [3, 32])
    parts = [memory[..., part, :].permute(order) for part in range(3)]
    result = check(*parts, 0.2)
    theirs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts, scale=0.2)[0]
    assert result.stride() == theirs.stride()
    contiguous = attention_by_heads(*(part.contiguous() for part in parts), 0.2)
    assert torch.equal(result, contiguous)


def test_tensors_whose_rows_are_not_dense_then_have_the_same_numbers():
    query, key, value = (heads(2, 2, 32, 20, seed).transpose(2, 3) for seed in range(3))
    result = check(query, key, value, 0.3)
    assert torch.equal(
        result, attention_by_heads(query.contiguous(), key.contiguous(), value.contiguous(), 0.3)
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_then_do_not_depend_on_threads_or_on_other_heads(threads):
    parts = [heads(3, 7, 50, 32, seed) for seed in range(3)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = attention_by_heads(*parts, 0.2)
    finally:
        torch.set_num_threads(before)
    for batch in range(3):
        for head in range(7):
            alone = [part[batch : batch + 1, head : head + 1] for part in parts]
            assert torch.equal(attention_by_heads(*alone, 0.2)[0, 0], result[batch, head])


def test_nan_then_is_in_the_rows_that_read_it():
    query, key, value = (heads(1, 2, 20, 16, seed) for seed in range(3))
    query[0, 0, 3, 5] = value[0, 1, 4, 6] = torch.nan
    result = attention_by_heads(query, key, value, 0.25)
    assert torch.equal(result.isnan(), by_formula(query, key, value, 0.25).isnan())


@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 2, 4, 24)] * 3,
        [(1, 2, 4, 16), (1, 2, 5, 16), (1, 2, 6, 16)],
        [(2, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16)],
        [(2, 4, 16)] * 3,
    ],
    ids=["depth", "lengths", "batches", "dimensions"],
)
def test_other_sizes_then_are_refused(sizes):
    with pytest.raises(ValueError, match="attention_by_heads got"):
        attention_by_heads(*(torch.randn(each) for each in sizes), 1.0)
