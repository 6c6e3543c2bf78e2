"""Buffers, parameters and modules that are created in forward (semantics.md 8.2)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("State made in forward", fidelity="exact")

X = torch.randn(3, 4)


class Model(nn.Module):
    """Multiplies by the result of `make`, which may also assign it to the inner module."""

    def __init__(self, make: Callable) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.table = None
        self.make = make

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.linear(x) * self.make(self, self.inner, x)
        return x, F.mse_loss(x, torch.zeros_like(x))


def table(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(float(x.shape[-1]), device=x.device) / 3


def registered(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(model, "table"):
        model.register_buffer("table", table(x))
    return model.table


def of_inner(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", table(x), persistent=False)
    return inner.made


def of_none(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if "made" not in inner._buffers:
        inner.register_buffer("made", None)
        inner.made = table(x)
    return inner.made


def assigned(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.made = nn.Buffer(table(x))
    return inner.made


def of_host(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", torch.full((4,), 3.0, device="cpu"))
    return inner.made


def of_integers(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", torch.arange(4, device=x.device))
    return inner.made


def of_weight(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", model.linear.weight.detach()[0] * 2)
    return inner.made


def counting(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", torch.zeros(4, device=x.device))
    inner.made += x.detach().mean(0)
    return inner.made.clone()


def of_module(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "part"):
        part = nn.Module()
        part.register_buffer("made", table(x))
        inner.part = nn.Sequential(nn.ReLU(), nn.ModuleList([part]))
    return inner.part[1][0].made


def under_a_second_name(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    inner.weight, inner.layer = model.linear.weight, model.linear
    return inner.layer.weight[0] + inner.weight[1]


BUFFERS = (
    registered,
    of_inner,
    of_none,
    assigned,
    of_host,
    of_integers,
    of_weight,
    counting,
    of_module,
    under_a_second_name,
)


def check_equal(model: nn.Module, plain: nn.Module) -> None:
    ours, theirs = model.state_dict(), plain.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", BUFFERS, ids=lambda make: make.__name__)
def test_buffer_when_made_in_forward_then_training_equals_the_plain_loop(make: Callable) -> None:
    model = Model(make)
    plain = copy.deepcopy(model)
    weights = list(model.parameters())
    training = poptorch.trainingModel(model, options(), poptorch.optim.SGD(weights, lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for factor in (1.0, 2.0, 3.0):
        result, loss = training(X * factor)
        optimizer.zero_grad()
        expected, expected_loss = plain(X * factor)
        expected_loss.backward()
        optimizer.step()
        torch.testing.assert_close(result, expected.detach(), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        check_equal(model, plain)
    training.destroy()
    check_equal(copy.deepcopy(model), plain)
    assert type(next(iter(model.buffers()), X)) is torch.Tensor
    result = poptorch.inferenceModel(model, options())(X)
    torch.testing.assert_close(result, plain(X), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(X)[0].shape, X.shape)


def new_parameter(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.table is None:
        inner.table = nn.Parameter(table(x))
    return inner.table


def new_module(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if inner.table is None:
        inner.table = nn.Sequential(nn.ReLU(), nn.Linear(4, 4, device=x.device))
    return inner.table(x)


def of_input(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", x.detach().mean(0))
    return inner.made


def random(model: Model, inner: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(inner, "made"):
        inner.register_buffer("made", torch.rand(4, device=x.device))
    return inner.made


REFUSED = {
    "Parameter inner.table is first made in forward, at .*__init__": new_parameter,
    "Module inner.table, with parameter weight, is first made in forward, at .*": new_module,
    "Buffer inner.made is first made in forward, at .* copy_": of_input,
    "Buffer inner.made is first made in forward, at .* Register it": random,
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text].__name__)
def test_state_when_it_cannot_be_the_models_then_error_and_the_model_stays_usable(
    text: str,
) -> None:
    model = Model(REFUSED[text])
    names = list(model.state_dict())
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(poptorch.Error, match=text) as error:
        training(X)
    assert "test_state_made_in_forward.py:" in str(error.value)
    assert list(model.state_dict()) == names
    assert copy.deepcopy(model)(X)[0].shape == X.shape
    assert (torch.ones(2) + 1).tolist() == [2, 2]
    # As the error advises, a call on the CPU creates the state before the model is wrapped.
    model(X)
    result = poptorch.inferenceModel(model, options())(X)
    torch.testing.assert_close(result, model(X), rtol=1e-4, atol=1e-5)


def test_module_when_made_for_a_call_only_then_runs() -> None:
    model = Model(lambda _, __, x: nn.LayerNorm(4, device=x.device)(x))
    torch.testing.assert_close(poptorch.inferenceModel(model, options())(X), model(X))
