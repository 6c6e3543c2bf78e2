"""Calls whose tensors pass the quick check."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.executor.args_parser import ArgsParser, Call


class Added(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, *, scale: float = 1.0) -> Any:
        return x if y is None else (x + y) * scale


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Own(ArgsParser):
    """A parser that reverses the arguments."""

    def __call__(self, args: Any, kwargs: Any) -> Any:
        return super().__call__(tuple(reversed(args)), kwargs)


X, Y = torch.rand(4, 3), torch.rand(4, 3)


def looked_at(args: Any, kwargs: Any, parser: Any = None, compiled: Any = (X, Y)) -> Any:
    parser = parser or ArgsParser(Plain())
    return Call(parser, args, kwargs).tensors_like(parser(compiled, {}))


def test_call_when_its_tensors_are_alike_then_they_are_taken_as_they_are() -> None:
    x, y = torch.rand(4, 3), torch.rand(4, 3)
    found = looked_at((x, y), {})
    assert found is not None and found[0] is x and found[1] is y


OTHERS: dict[str, Any] = {
    "another type": ((X.half(), Y), {}),
    "another shape": ((X[:2], Y), {}),
    "not contiguous": ((torch.rand(3, 4).t(), Y), {}),
    "on meta": ((X.to("meta"), Y), {}),
    "sparse": ((X.to_sparse(), Y), {}),
    "a parameter": ((torch.nn.Parameter(X), Y), {}),
    "a number": ((X, 1.0), {}),
    "a list": ((X, [Y]), {}),
    "too few": ((X,), {}),
    "too many": ((X, Y, Y), {}),
    "by name": ((X,), {"y": Y}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_call_when_more_has_to_be_looked_at_then_none(case: str) -> None:
    assert looked_at(*OTHERS[case]) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_call_when_a_tensor_is_nested_then_none() -> None:
    assert looked_at((torch.nested.nested_tensor([X[0], X[1, :2]]), Y), {}) is None


def test_call_when_forward_has_constants_or_the_user_brings_it_into_order_then_none() -> None:
    # The value of `scale` must be checked.
    assert looked_at((X, Y), {}, ArgsParser(Added())) is None
    assert looked_at((X, Y), {}, Own(Plain())) is None


def test_call_when_it_is_looked_at_closely_after_plain_ones_then_still_says_what_is_wrong() -> None:
    model = poptorch.inferenceModel(Plain())
    for _ in range(2):
        torch.testing.assert_close(model(X, Y), X + Y)
    with pytest.raises(poptorch.Error, match="Shape mismatch for y"):
        model(X, Y[:2])
    torch.testing.assert_close(model(X, y=Y), X + Y)
    torch.testing.assert_close(model(torch.rand(3, 4).t().copy_(X), Y), X + Y)
