"""Tensors with one element or none, whose strides can be any numbers, anywhere in a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = pytest.mark.feature("Numeric types", fidelity="exact")

X = torch.arange(1.0, 5.0).reshape(2, 2)
DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool]
# Name -> shape and strides.
LAYOUTS = {
    "expanded": ((1,), (0,)),
    "expanded twice": ((1, 1), (0, 0)),
    "one of many": ((1,), (5,)),
    "odd strides": ((1, 1), (3, 7)),
    "row": ((1, 2), (7, 1)),
    "empty": ((2, 0), (1, 5)),
}
Make = Callable[..., torch.Tensor]


@pytest.fixture(params=LAYOUTS.values(), ids=list(LAYOUTS))
def make(request: pytest.FixtureRequest) -> Make:
    """Returns a function that creates a tensor with the strides of a layout."""
    shape, strides = request.param

    def made(dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
        whole = torch.arange(2, 5, device=device).to(dtype)
        return whole.as_strided(shape, strides, 1)

    return made


class Scaled(nn.Module):
    """A model that multiplies its input by a tensor, which it holds in the given way."""

    def __init__(self, place: str, make: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.place, self.make = place, make
        if place == "attribute":
            self.factor = make()
        elif place == "buffer":
            self.register_buffer("factor", make())
        elif place == "parameter":
            self.factor = nn.Parameter(make(), requires_grad=False)

    def forward(self, x: torch.Tensor, given: torch.Tensor | None = None) -> torch.Tensor:
        if self.place == "input":
            assert given is not None
            return _product(x, given)
        return _product(x, self.make() if self.place == "constant" else self.factor)


def _product(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return x * factor if factor.numel() else x + factor.sum()


@pytest.mark.parametrize("place", ["attribute", "buffer", "parameter", "constant", "input"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product_then_is_that_of_pytorch(make: Make, dtype: torch.dtype, place: str) -> None:
    model = Scaled(place, lambda: make(dtype))
    inputs = (X, make(dtype)) if place == "input" else (X,)
    result = poptorch.inferenceModel(model, options())(*inputs)
    torch.testing.assert_close(result, model(*inputs), rtol=0, atol=0)


class Trained(nn.Module):
    """A model whose weight, buffer and constant have the strides of a layout."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.weight = nn.Parameter(make())
        self.register_buffer("bias", make())
        self.shift = make()

    def forward(self, x: torch.Tensor):
        y = x * self.weight.sum() + self.bias.sum() - self.shift.sum()
        return y, poptorch.identity_loss(y.square(), "mean")


def test_training_then_gives_the_weights_of_pytorch(make: Make) -> None:
    plain = Trained(make)
    model = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.01)
    )
    for _ in range(2):
        optimizer.zero_grad()
        loss = plain(X)[1]
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(training(X)[1], loss.detach())
    training.destroy()
    torch.testing.assert_close(model.weight, plain.weight)


def test_executable_then_is_stored_and_found_again(make: Make, tmp_path: Path) -> None:
    cached = options().enableExecutableCaching(str(tmp_path))
    model, path = Trained(make), str(tmp_path / "stored")
    expected = model(X)[0]
    for _ in range(2):
        result = poptorch.inferenceModel(Trained(make), cached)(X)[0]
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    poptorch.inferenceModel(model, options()).compileAndExport(path, X)
    torch.testing.assert_close(poptorch.load(path)(X)[0], expected, rtol=0, atol=0)


def test_value_guard_then_tells_equal_values_from_others(make: Make) -> None:
    class Guarded(nn.Module):
        def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            return x + sum(shift.flatten().tolist())

    guarded = options()
    emulator.set_value_guards(guarded, max_programs=2)
    model = poptorch.inferenceModel(Guarded(), guarded)
    for shift in (make(), make(), make() + 1):
        torch.testing.assert_close(model(X, shift), Guarded()(X, shift))


def test_comparison_then_finds_equal_numbers(make: Make) -> None:
    model = poptorch.inferenceModel(Scaled("attribute", make), options())
    assert emulator.compare(model, X).verdict is emulator.Verdict.EQUAL
