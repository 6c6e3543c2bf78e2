"""Compares the operators of torch_scatter with loops over their definitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from poptorch_emu.errors import Error
from poptorch_emu.trace.operators.scatter_operators import SCATTER_OPERATORS

ROWS, SIZE = 7, 5
INDEX = torch.tensor([3, 0, 0, 3, 1, 3, 0])
SORTED = torch.tensor([0, 0, 1, 1, 1, 4, 4])
POINTERS = torch.tensor([0, 2, 2, 5, 7])


def operator(name: str) -> Callable:
    return SCATTER_OPERATORS[f"torch_scatter::{name}"]


def reduced(kind: str, values: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Returns the reduction of the rows that arrive at one place."""
    if not values:
        return torch.ones_like(like) if kind == "mul" else torch.zeros_like(like)
    rows = torch.stack(values)
    if kind == "mean":
        return rows.mean(0) if rows.is_floating_point() else rows.sum(0) // len(values)
    return {
        "sum": rows.sum(0),
        "mul": rows.prod(0),
        "min": rows.min(0).values,
        "max": rows.max(0).values,
    }[kind]


def by_index(kind: str, src: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    places = [[row for row, at in zip(src, index, strict=True) if at == k] for k in range(size)]
    return torch.stack([reduced(kind, rows, src[0]).to(src.dtype) for rows in places])


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("kind", ["sum", "mul", "mean", "min", "max"])
def test_scatter_when_along_any_axis_then_equals_the_loop(kind: str, dtype: torch.dtype) -> None:
    src = (torch.randn(ROWS, 3) * 4).to(dtype)
    expected = by_index(kind, src, INDEX, SIZE)
    scatter = operator(f"scatter_{kind}")
    torch.testing.assert_close(first(scatter(src, INDEX, 0, None, SIZE)), expected)
    torch.testing.assert_close(first(scatter(src.T, INDEX, -1, None, SIZE)), expected.T)
    whole = INDEX[:, None].expand(ROWS, 3)
    torch.testing.assert_close(first(scatter(src, whole, 0, None, SIZE)), expected)


@pytest.mark.parametrize("kind", ["sum", "mean", "min", "max"])
def test_segments_when_sorted_or_pointed_at_then_equal_the_loop(kind: str) -> None:
    src = torch.randn(ROWS, 3)
    result = first(operator(f"segment_{kind}_coo")(src, SORTED, None, SIZE))
    torch.testing.assert_close(result, by_index(kind, src, SORTED, SIZE))
    parts = [list(src[a:b]) for a, b in zip(POINTERS, POINTERS[1:], strict=False)]
    expected = torch.stack([reduced(kind, rows, src[0]) for rows in parts])
    torch.testing.assert_close(first(operator(f"segment_{kind}_csr")(src, POINTERS)), expected)


def test_segments_when_pointers_leave_rows_out_then_those_count_nowhere() -> None:
    src = torch.randn(ROWS)
    result = operator("segment_sum_csr")(src, torch.tensor([1, 3, 5]))
    torch.testing.assert_close(result, torch.stack([src[1:3].sum(), src[3:5].sum()]))


def test_segments_when_batched_then_each_row_has_its_own() -> None:
    src, index = torch.randn(2, ROWS), torch.stack([SORTED, SORTED.clamp(max=1)])
    result = operator("segment_sum_coo")(src, index, None, SIZE)
    expected = torch.stack([by_index("sum", s, i, SIZE) for s, i in zip(src, index, strict=True)])
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("kind", ["min", "max"])
def test_extreme_when_values_are_equal_then_the_first_has_the_gradient(kind: str) -> None:
    src = torch.tensor([2.0, 1.0, 1.0, 2.0], requires_grad=True)
    index = torch.tensor([0, 0, 0, 0])
    value, at = operator(f"scatter_{kind}")(src, index, 0, None, 2)
    value.sum().backward()
    place = 1 if kind == "min" else 0
    assert at.tolist() == [place, 4]
    assert value.tolist() == [src[place].item(), 0.0]
    assert src.grad.tolist() == [float(n == place) for n in range(4)]


def test_gather_when_by_index_then_equals_selection() -> None:
    src = torch.randn(SIZE, 3)
    torch.testing.assert_close(operator("gather_coo")(src, SORTED), src[SORTED])


def test_out_when_given_then_holds_values_that_count_too() -> None:
    out = torch.tensor([5.0, 0.0, 1.5])
    src, index = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 2])
    value, at = operator("scatter_max")(src, index, 0, out, None)
    assert value is out and value.tolist() == [5.0, 0.0, 3.0]
    assert at.tolist() == [3, 3, 2]
    assert operator("scatter_sum")(src, index, 0, out, None).tolist() == [6.0, 0.0, 8.0]


def test_out_when_it_cannot_be_joined_then_refused_with_the_way_out() -> None:
    with pytest.raises(Error, match="is given `out`.*Leave it out"):
        operator("segment_sum_coo")(torch.ones(3), torch.zeros(3, dtype=int), torch.ones(2), None)
