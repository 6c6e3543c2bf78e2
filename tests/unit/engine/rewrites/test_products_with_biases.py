"""Layers that add their bias to a product, as Keras does: PyTorch's numbers, in one operation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from support.processors import choosing, needs_mkl, needs_onednn, needs_vectors
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.product_kernels import Kernel, Role

BATCH, ACCUMULATION, RATE = 32, 5, 0.1


class Dense(nn.Module):
    """A layer whose weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x @ self.kernel, self.bias)


class Layers(nn.Module):
    """Two layers, and one whose outputs fill no cache line; optionally each in its own stage."""

    def __init__(self, *, is_split: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Dense(64, 48), Dense(48, 64), Dense(64, 10)])
        self.is_split = is_split

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for number, layer in enumerate(self.layers):
            if self.is_split:
                poptorch.Block.start(f"{number}", ipu_id=number)
            x = torch.tanh(layer(x))
        return x, poptorch.identity_loss(x.square().mean(), "none")


def data() -> torch.Tensor:
    return torch.randn(ACCUMULATION * BATCH, 64, generator=torch.Generator().manual_seed(1))


def trained(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], str]:
    """Returns the weights after an update, and the program."""
    options = poptorch.Options().autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(ACCUMULATION)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), RATE))
    training(x)
    text = training._executable.program.text()
    training.destroy()
    return [value.detach().clone() for value in model.parameters()], text


def trained_by_hand(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the weights of plain PyTorch in float64."""
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for part in x.double().chunk(ACCUMULATION):
        (model(part)[1] / ACCUMULATION).backward()
    optimizer.step()
    return [value.detach() for value in model.parameters()]


def inferred(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    options = poptorch.Options().deviceIterations(ACCUMULATION)
    inference = poptorch.inferenceModel(model, options.outputMode(poptorch.OutputMode.All))
    return inference(x)[0], inference._executable.program.text()


@pytest.mark.parametrize(
    "kernel",
    [
        None,
        pytest.param(Kernel.SMALL, marks=needs_vectors),
        pytest.param(Kernel.PANELS, marks=needs_vectors),
        pytest.param(Kernel.ONEDNN, marks=needs_onednn),
    ],
    ids=str,
)
def test_training_then_has_the_numbers_of_pytorch(kernel: Kernel | None) -> None:
    model, x = Layers(), data()
    model.layers = model.layers[:2]
    expected = trained_by_hand(copy.deepcopy(model), x)
    with nullcontext() if kernel is None else choosing(Role.PRODUCT, kernel):
        found, text = trained(model, x)
    for ours, value in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), value, rtol=1e-4, atol=1e-6)
    assert "aten::add.Tensor(" not in text
    # Gradients of the biases are sums of the columns that gradients of the kernels read.
    assert text.count("column_sums(") == 2 and "sum.dim_IntList(" not in text


def test_training_when_on_several_stages_then_has_the_same_bits() -> None:
    one, several = trained(Layers(), data())[0], trained(Layers(is_split=True), data())[0]
    assert all(map(torch.equal, one, several))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(Kernel.LIBRARY, marks=needs_mkl),
        pytest.param(Kernel.SMALL, marks=needs_vectors),
        pytest.param(Kernel.PANELS, marks=needs_vectors),
        pytest.param(Kernel.ONEDNN, marks=needs_onednn),
    ],
    ids=str,
)
def test_inference_then_packs_the_kernels_once(kernel: Kernel) -> None:
    model, x = Layers(), data()
    expected = copy.deepcopy(model).double()(x.double())[0].detach()
    with choosing(Role.FIXED_LAYER, kernel, is_packed=True):
        found, text = inferred(model, x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    name = "mkldnn::_linear_pointwise(" if kernel is Kernel.ONEDNN else "::packed_linear("
    assert text.count(name) == 3 and "aten::mm(" not in text and "aten::addmm(" not in text


@needs_vectors
def test_layer_that_is_called_twice_then_has_its_kernel_packed_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = Dense(64, 64)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.layer(torch.tanh(self.layer(x))),)

    model, x = Twice(), data()
    with choosing(Role.FIXED_LAYER, Kernel.SMALL, is_packed=True):
        found, text = inferred(model, x)
    torch.testing.assert_close(found, model(x)[0].detach(), rtol=1e-5, atol=1e-5)
    assert text.count("::packed_linear(") == 2 and text.count("::pack_weight(") == 1


class Function(nn.Module):
    """A model with a weight, which computes a test's function of it."""

    def __init__(self, function: Callable[..., torch.Tensor], *shape: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.weight, self.other = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.function(x @ self.weight, self.other),)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda product, other: torch.add(product, other, alpha=2), [4]),
        (lambda product, other: product + other, [BATCH, 4]),
        (lambda product, other: product + other, [BATCH, 1]),
        (lambda product, other: product + other, [2, 1, 4]),
        (lambda product, other: (product + other) * product, [4]),
        (lambda product, other: product + other.sin(), [4]),
        (lambda product, other: product + other.double(), [4]),
    ],
    ids=["scaled", "matrix", "column", "several", "used twice", "made", "wider"],
)
def test_what_is_no_bias_then_is_added_apart(
    function: Callable[..., torch.Tensor], shape: list[int]
) -> None:
    model, x = Function(function, *shape), torch.randn(BATCH, 6)
    inference = poptorch.inferenceModel(model, poptorch.Options())
    torch.testing.assert_close(inference(x)[0], model(x)[0].detach().float())
    assert "aten::addmm(" not in inference._executable.program.text()


def test_bias_on_the_left_then_is_one_operation_too() -> None:
    model, x = Function(lambda product, other: other + product, 4), torch.randn(BATCH, 6)
    inference = poptorch.inferenceModel(model, poptorch.Options())
    torch.testing.assert_close(inference(x)[0], model(x)[0].detach())
    assert "aten::add.Tensor(" not in inference._executable.program.text()
