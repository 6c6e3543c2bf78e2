"""Tensor subclasses that are created in forward (semantics.md 12.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Setting, assert_same_training
from support.small_models import run, trained
from torch import nn

pytestmark = pytest.mark.feature("Tensor subclasses in forward", fidelity="exact")

X = torch.randn(3, 4)


class Flagged(torch.Tensor):
    """A subclass without elements, like a state that is not initialised."""

    @staticmethod
    def __new__(cls, *args: Any, is_first: bool = False, **kwargs: Any):
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, is_first: bool = False) -> None:
        self.is_first = is_first


class State(torch.Tensor):
    """A subclass that is created by its constructor."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, factor: float = 1.0):
        state = torch.Tensor.__new__(cls, data)
        state.factor = factor
        return state

    def scaled(self) -> torch.Tensor:
        return self * self.factor


class Detached(torch.Tensor):
    """A subclass that is created without a gradient."""

    @staticmethod
    def __new__(cls, data: torch.Tensor):
        return torch.Tensor._make_subclass(cls, data)


class Seen(torch.Tensor):
    """A subclass that is created by a view, and wraps all operations."""

    @staticmethod
    def __new__(cls, data: torch.Tensor):
        return data.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, cls):
            result.last = func.__name__
        return result


def _flagged(x: torch.Tensor) -> torch.Tensor:
    state = Flagged(is_first=True)
    if state.is_first:
        state = torch.zeros_like(x)
    return state + x


def _seen(x: torch.Tensor) -> torch.Tensor:
    y = Seen(x).sin()
    assert isinstance(y, Seen) and y.last == "sin"
    return y * 2


def _kept(x: torch.Tensor) -> torch.Tensor:
    y = State(x, 2.0).exp()
    assert isinstance(y, State) and isinstance(y, torch.Tensor)
    return y + 1


_FUNCTIONS: dict[str, Callable] = {
    "of nothing": _flagged,
    "new": lambda x: State(x * 2, factor=3.0).scaled() + 1,
    "make": lambda x: Detached(x * 2) * x,
    "view": _seen,
    "results keep the class": _kept,
    "back to a tensor": lambda x: State(x).as_subclass(torch.Tensor).cos(),
    "nested": lambda x: Seen(State(x, 2.0).scaled()),
    "several": lambda x: State(x).split(2, 1)[1] @ State(x).max(0).values[:2],
    "of the host": lambda x: x + State(torch.ones(4, device="cpu"), 2.0).scaled(),
}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_subclass_when_made_in_forward_then_numbers_are_pytorchs(name: str) -> None:
    result = run(_FUNCTIONS[name], X)
    assert type(result) is torch.Tensor
    torch.testing.assert_close(result, _FUNCTIONS[name](X).as_subclass(torch.Tensor))


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_subclass_when_trained_then_gradients_are_pytorchs(name: str) -> None:
    weight = torch.randn(4)

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        value = _FUNCTIONS[name](x * weight)
        return F.mse_loss(value.as_subclass(torch.Tensor), torch.zeros_like(value))

    (after,) = trained(loss, [weight], [(X,)])
    leaf = weight.clone().requires_grad_()
    loss(X, leaf).backward()
    torch.testing.assert_close(after, weight - 0.1 * leaf.grad)


def test_pytorch_when_the_trace_ends_then_is_as_before() -> None:
    run(_FUNCTIONS["new"], X)
    own = {"__new__", "_make_subclass", "as_subclass"}
    assert own.isdisjoint(vars(torch.Tensor))
    assert type(State(X)) is State
    assert type(nn.Parameter(X)) is nn.Parameter


class Spiking(nn.Module):
    """A leaky membrane, whose state is a subclass until its size is known."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        membrane = Flagged(is_first=True)
        for _ in range(3):
            current = self.layer(x)
            if isinstance(membrane, Flagged) and getattr(membrane, "is_first", False):
                membrane = State(torch.zeros_like(current), 0.9)
            membrane = State(membrane * 0.9 + current, 0.9)
        logits = self.head(membrane.scaled().as_subclass(torch.Tensor))
        return logits, F.cross_entropy(logits, labels)


def test_spiking_network_when_trained_then_equals_the_plain_loop() -> None:
    assert_same_training(
        Spiking(),
        lambda rows: (torch.randn(rows, 4), torch.randint(3, (rows,))),
        Setting("sharded", accumulation=2),
        rows=2,
        num_updates=3,
    )
