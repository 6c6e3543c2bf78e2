"""Large products of training go to oneDNN where the processor runs it faster: the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine import onednn
from poptorch_emu.engine.rewrites import large_products

ACCUMULATION = 3

pytestmark = pytest.mark.skipif(not onednn.IS_AVAILABLE, reason="PyTorch was built without oneDNN")


@pytest.fixture(autouse=True)
def onednn_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_products, "is_onednn_faster", lambda: True)


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
    """Returns what plain PyTorch makes of it in float64."""
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


def test_layers_when_large_then_go_to_onednn_with_the_numbers_of_pytorch() -> None:
    model, x = made(256, 256, 512)
    expected = by_hand(copy.deepcopy(model), x)
    found, text = trained(model, x)
    assert_close(found, expected)
    assert text.count("mkldnn::_linear_pointwise(") >= 4
    # The gradients of weights are still added inside their products.
    assert "::add_product(" in text


def test_layers_when_on_several_stages_then_have_the_same_bits() -> None:
    model, x = made(256, 256, 512)
    split = copy.deepcopy(model)
    split.is_split = True
    for one, other in zip(trained(model, x)[0], trained(split, x)[0], strict=True):
        assert torch.equal(one, other)


def test_layers_when_small_then_stay_as_they_are() -> None:
    _, text = trained(*made(8, 16, 24))
    assert "mkldnn" not in text


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 999))
def test_layers_of_any_size_then_have_the_numbers_of_pytorch(
    rows: int, inputs: int, hidden: int, seed: int
) -> None:
    model, x = made(rows, inputs, hidden, seed)
    expected = by_hand(copy.deepcopy(model), x)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large_products, "_FEWEST_MULTIPLICATIONS", 1)
        found, text = trained(model, x)
    assert_close(found, expected)
    assert "mkldnn::_linear_pointwise(" in text
    # What is added to it is a matrix: oneDNN's operator has no place for it.
    assert "aten::addmm(" in text or rows == 1


class Projection(nn.Module):
    """Attention, which adds a bias to a view of a product; the product may be read, too."""

    def __init__(self, *, is_read: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.weight = nn.Parameter(torch.randn(512, 256) / 16)
        self.bias = nn.Parameter(torch.randn(512))
        self.is_read = is_read

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = self.attention(x, x, x, need_weights=False)
        product = x @ self.weight.t()
        result = product + self.bias
        if self.is_read:
            result = result + product.square()
        return result, poptorch.identity_loss(result.square().mean(), "none")


@pytest.mark.parametrize("is_read", [False, True])
def test_bias_of_a_view_then_goes_with_the_product(is_read: bool) -> None:
    x = torch.randn(4 * ACCUMULATION, 64, 256, generator=torch.Generator().manual_seed(1))
    model = Projection(is_read=is_read)
    exact = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(exact.parameters(), lr=0.1)
    results = []
    for micro_batch in x.double().chunk(ACCUMULATION):
        result, loss = exact(micro_batch)
        (loss / ACCUMULATION).backward()
        results.append(result.detach())
    optimizer.step()
    (found, _, *weights), text = trained(model, x)
    expected = [weight.detach() for weight in exact.state_dict().values()]
    assert_close([found, *weights], [torch.cat(results), *expected])
    forward = text[text.index("forward 0") : text.index("backward 0")]
    assert forward.count("aten::add.Tensor(") == 2 * is_read
    assert forward.count("mkldnn::_linear_pointwise(") == 3


@pytest.mark.parametrize(
    ("vendor", "capability", "is_faster"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_onednn_is_faster_on_the_processors_where_it_was_measured(
    monkeypatch: pytest.MonkeyPatch, vendor: str | None, capability: str, is_faster: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(large_products, "processor", {"vendor_id": vendor}.get)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert large_products.is_onednn_faster() is is_faster
