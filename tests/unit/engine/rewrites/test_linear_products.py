"""Products in training by each kernel: plain PyTorch's numbers, for any division into stages."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import (
    AMD_AVX2,
    AMD_AVX512,
    INTEL_AVX512,
    choosing,
    compiling_for,
    needs_onednn,
    needs_vectors,
)
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.product_kernels import Kernel, Role

ACCUMULATION = 3


class Layers(nn.Module):
    """A layer with bias and one without, and a product that is scaled and added to a matrix."""

    def __init__(self, inputs: int, hidden: int, *, is_split: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, inputs, bias=False)
        self.is_split = is_split

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.first(x))
        if self.is_split:
            poptorch.Block.useAutoId()
            with poptorch.Block("second", ipu_id=1):
                return self.rest(x, hidden)
        return self.rest(x, hidden)

    def rest(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = torch.addmm(x, self.second(hidden), self.first.weight.t() @ hidden.t() @ x)
        return result, poptorch.identity_loss(result.square().mean(), "none")


def trained(model: Layers, x: torch.Tensor) -> tuple[list[torch.Tensor], str]:
    """Returns the results and the weights after one update, and the program."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    result, loss = training(x)
    weights = [value.detach().clone() for value in model.state_dict().values()]
    text = training._executable.program.text()
    training.destroy()
    return [result, loss, *weights], text


def by_hand(model: Layers, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the results of plain PyTorch in float64."""
    model, results, losses = model.double(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro_batch in x.double().chunk(ACCUMULATION):
        hidden = torch.tanh(model.first(micro_batch))
        product = model.first.weight.t() @ hidden.t() @ micro_batch
        results.append(micro_batch + model.second(hidden) @ product)
        losses.append(results[-1].square().mean())
        (losses[-1] / ACCUMULATION).backward()
    optimizer.step()
    weights = [value.detach() for value in model.state_dict().values()]
    return [torch.cat(results).detach(), torch.stack(losses).detach(), *weights]


def assert_close(found: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    for ours, value in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), value, rtol=1e-4, atol=1e-5)


def made(rows: int, inputs: int, hidden: int, seed: int = 0) -> tuple[Layers, torch.Tensor]:
    torch.manual_seed(seed)
    return Layers(inputs, hidden), torch.randn(ACCUMULATION * rows, inputs) / inputs


# Pattern of the text of a product on each processor.
PRODUCTS = {
    AMD_AVX2: r"poptorch_emu::product\( %\d+ %\d+ panels \)",
    AMD_AVX512: r"mkldnn::_linear_pointwise\(",
    INTEL_AVX512: r"aten::mm\(",
}


@pytest.mark.parametrize(
    "processor",
    [
        pytest.param(AMD_AVX2, marks=needs_vectors),
        pytest.param(AMD_AVX512, marks=needs_onednn),
        INTEL_AVX512,
    ],
    ids=str,
)
def test_products_when_large_then_have_the_numbers_of_pytorch(processor) -> None:
    model, x = made(256, 256, 512)
    expected = by_hand(copy.deepcopy(model), x)
    with compiling_for(*processor):
        found, text = trained(model, x)
    assert_close(found, expected)
    assert len(re.findall(PRODUCTS[processor], text)) >= 2
    # The gradients of weights are still added inside their products.
    assert "::add_product(" in text


@needs_onednn
def test_layers_when_on_several_stages_then_have_the_same_bits() -> None:
    model, x = made(256, 256, 512)
    split = copy.deepcopy(model)
    split.is_split = True
    with compiling_for(*AMD_AVX512):
        for one, other in zip(trained(model, x)[0], trained(split, x)[0], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(Kernel.ONEDNN, marks=needs_onednn),
        pytest.param(Kernel.SMALL, marks=needs_vectors),
        pytest.param(Kernel.PANELS, marks=needs_vectors),
    ],
    ids=lambda kernel: kernel.name,
)
@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 999))
def test_products_of_any_size_then_have_the_numbers_of_pytorch(
    kernel: Kernel, rows: int, inputs: int, hidden: int, seed: int
) -> None:
    # The kernel for small products reads whole lines of a cache.
    unit = 16 if kernel is Kernel.SMALL else 1
    rows, inputs, hidden = unit * rows, unit * inputs, unit * hidden
    model, x = made(rows, inputs, hidden, seed)
    expected = by_hand(copy.deepcopy(model), x)
    with choosing(Role.PRODUCT, kernel):
        found, text = trained(model, x)
    assert_close(found, expected)
    name = "mkldnn::_linear_pointwise(" if kernel is Kernel.ONEDNN else "poptorch_emu::product("
    assert name in text
    # The addend is a matrix, which only `addmm` supports.
    assert "aten::addmm(" in text or rows == 1
