"""Arrangements of chains of views and transposes, compared with the tensors themselves."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poptorch_emu.engine.layout.arrangement import Arrangement, sizes


def arranged(x: torch.Tensor, arrangement: Arrangement, shape: tuple[int, ...]) -> torch.Tensor:
    """Splits, permutes and views `x` once."""
    split = x.view(sizes(arrangement.split))
    return split.permute(arrangement.order).reshape(shape)


def shapes_of(count: int) -> st.SearchStrategy[list[int]]:
    """Draws shapes with this many elements."""

    @st.composite
    def draw_shape(draw: st.DrawFn) -> list[int]:
        rest, shape = count, []
        while rest > 1:
            divisors = [each for each in range(2, rest + 1) if rest % each == 0]
            shape.append(draw(st.sampled_from(divisors)))
            rest //= shape[-1]
        for _ in range(draw(st.integers(0, 2))):
            shape.insert(draw(st.integers(0, len(shape))), 1)
        return shape

    return draw_shape()


@settings(max_examples=200)
@given(st.data())
def test_arrangement_of_a_chain_then_moves_each_element_as_the_chain_does(data):
    count = data.draw(st.sampled_from([1, 6, 24, 60, 128]))
    x = torch.arange(count).view(data.draw(shapes_of(count)))
    moved, found = x, Arrangement.of(x.shape)
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(moved.dim())))
            moved, found = moved.permute(order), found.permuted(order)
        else:
            shape = data.draw(shapes_of(count))
            viewed = found.viewed(shape)
            if viewed is None:
                continue
            moved, found = moved.reshape(shape), viewed
    assert [math.prod(sizes(dim)) for dim in found.dims] == list(moved.shape)
    assert torch.equal(arranged(x, found, moved.shape), moved)
    if found.keeps_rows and count > 1:
        last = moved.reshape(-1, found.stretches[-1].size if found.stretches else 1)
        assert torch.equal(last.diff(), torch.ones_like(last.diff()))


def test_view_when_it_cuts_across_a_stretch_then_is_unknown():
    turned = Arrangement.of((4, 6)).permuted((1, 0))
    assert turned.viewed((6, 4)) == turned
    assert turned.viewed((3, 8)).viewed((24,)) is not None
    assert turned.viewed((4, 6)) is None


@pytest.mark.parametrize("size", [1, 5])
def test_resized_when_a_dimension_is_whole_then_arranges_a_part_of_it(size):
    found = Arrangement.of((3, 8, 2)).viewed((3, 4, 2, 2)).permuted((1, 2, 0, 3))
    part = torch.arange(size * 16).view(size, 8, 2)
    expected = part.view(size, 4, 2, 2).permute(1, 2, 0, 3)
    assert torch.equal(arranged(part, found.resized(0, size), expected.shape), expected)
