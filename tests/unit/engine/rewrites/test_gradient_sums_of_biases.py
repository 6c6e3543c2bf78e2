"""Gradients of biases are computed together with those of weights: plain PyTorch's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

STEPS, ACCUMULATION, LENGTH, WIDTH = 3, 4, 12, 128
SUMS, ALONE, PYTORCH = "add_product.with_sums(", "column_sums(", "sum.dim_IntList("


class Layers(nn.Module):
    """Two linear layers of a sequence and an attention, which adds a bias to a view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(32, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4)
        self.last = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("first", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("rest", ipu_id=1):
            x, _ = self.attention(x, x, x, need_weights=False)
            loss = self.last(x).square().mean()
            return loss, poptorch.identity_loss(loss, "none")


def train(
    model: nn.Module, prepare: Callable[[poptorch.Options], object] = lambda options: None
) -> tuple[dict[str, torch.Tensor], str]:
    """Returns the trained weights, and the listing of the program."""
    options = poptorch.Options().deviceIterations(STEPS)
    options.Training.gradientAccumulation(ACCUMULATION)
    prepare(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = poptorch.trainingModel(model, options, optimizer)
    training(data())
    text = str(training._executable.program)
    training.destroy()
    return {name: value.detach() for name, value in model.named_parameters()}, text


def data() -> torch.Tensor:
    return torch.randn(
        ACCUMULATION * STEPS * LENGTH, 16, 32, generator=torch.Generator().manual_seed(1)
    )


def plain(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the weights after the same updates in plain PyTorch, in float64."""
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for index, x in enumerate(data().double().split(LENGTH), start=1):
        (model(x)[1] / ACCUMULATION).backward()
        if index % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach().float() for name, value in model.named_parameters()}


def anchor(options: poptorch.Options) -> None:
    """Anchors the gradients of weights, so that their products are computed separately."""
    for name in ("first.weight", "attention.in_proj_weight", "last.weight"):
        options.anchorTensor(name, f"Gradient___{name}")


def test_training_then_gradients_of_biases_come_with_those_of_weights() -> None:
    weights, text = train(Layers())
    assert text.count(SUMS) == 4 and ALONE not in text and PYTORCH not in text
    expected = plain(Layers())
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=name)
        if name.endswith("bias") and "in_proj" not in name:
            before = Layers().get_parameter(name).detach()
            assert (value - before).norm() > 1e-3, f"{name} hardly moved"


def test_sums_when_made_alone_then_have_the_same_bits() -> None:
    weights, _ = train(Layers())
    alone, text = train(Layers(), anchor)
    assert text.count(SUMS) == 1 and text.count(ALONE) == 3
    for name, value in weights.items():
        assert torch.equal(value, alone[name]), name


class Linear(torch.autograd.Function):
    """A product whose backward reads the column sums before it computes the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        mixed = gradient + gradient.sum([0], keepdim=True) / 64
        return mixed @ weight, gradient.t() @ x


class ReadsSums(nn.Module):
    """A layer whose column sums have other readers, or are computed several times."""

    def __init__(self, *, is_read: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.is_read = nn.Linear(32, WIDTH), is_read
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 16)
        self.row = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x.flatten(0, 1)) + self.row
        if self.is_read:
            x = Linear.apply(torch.tanh(x), self.weight)
        loss = torch.tanh(x).square().mean()
        return loss, poptorch.identity_loss(loss, "none")


@pytest.mark.parametrize("is_read", [False, True])
def test_sums_when_others_read_them_then_gradients_are_those_of_pytorch(is_read: bool) -> None:
    weights, text = train(ReadsSums(is_read=is_read))
    # If the sum is read before the product, PyTorch computes it.
    assert text.count(PYTORCH) == is_read and SUMS in text
    expected = plain(ReadsSums(is_read=is_read))
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=name)


class Positions(nn.Module):
    """A layer and a weight that is added to its result, so that both have the same gradient."""

    def __init__(self, *, has_bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(32, WIDTH, bias=has_bias)
        self.positions = nn.Parameter(torch.randn(LENGTH * 16, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x.flatten(0, 1)) + self.positions
        loss = torch.tanh(x).square().mean()
        return loss, poptorch.identity_loss(loss, "none")


@pytest.mark.parametrize("has_bias", [False, True])
def test_columns_when_they_are_a_gradient_then_training_is_that_of_pytorch(has_bias: bool) -> None:
    weights, text = train(Positions(has_bias=has_bias))
    assert (SUMS in text) is has_bias
    expected = plain(Positions(has_bias=has_bias))
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_training_without_biases_of_float32_then_has_no_sums(dtype: torch.dtype) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, WIDTH, bias=dtype is torch.float16, dtype=dtype)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            loss = self.layer(x.to(dtype)).float().square().mean()
            return loss, poptorch.identity_loss(loss, "none")

    _, text = train(Plain())
    assert SUMS not in text and ALONE not in text
