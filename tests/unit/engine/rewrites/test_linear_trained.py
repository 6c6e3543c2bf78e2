"""Weights in training that are packed once for a window: the same numbers, with current weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import (
    AMD_AVX2,
    INTEL_AVX512,
    choosing,
    compiling_for,
    needs_mkl,
    needs_vectors,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import poptorch_emu as poptorch
from poptorch_emu.engine.product_kernels import Kernel, Role

ACCUMULATION = 4
NUM_UPDATES = 3
ONCE_A_WINDOW = ", again when its variable has changed\n"
LEARNING_RATE = 0.01  # With ten times this rate, some of the small models diverge.


pytestmark = [needs_mkl, needs_vectors]


@pytest.fixture(autouse=True)
def packing_is_faster() -> Iterator[None]:
    with compiling_for(*INTEL_AVX512):
        yield


class Layers(nn.Module):
    """Two layers, one without bias, and a third product with the weight of the first."""

    def __init__(self, inputs: int, hidden: int, *, is_split: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, inputs, bias=False)
        self.is_split = is_split

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.first(x))
        if self.is_split:
            with poptorch.Block("second", ipu_id=1):
                return self.rest(hidden)
        return self.rest(hidden)

    def rest(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.second(hidden) + 0.1 * self.first.weight.square().sum(0)
        return result, poptorch.identity_loss(result.square().mean(), "none")


def options_of(**changes: object) -> poptorch.Options:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    return options


def trained(
    model: nn.Module, x: torch.Tensor, options: poptorch.Options | None = None
) -> tuple[list[torch.Tensor], str]:
    """Returns the results of some updates and the weights after them, and the program."""
    optimizer = poptorch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    training = poptorch.trainingModel(model, options or options_of(), optimizer)
    results = [training(x)[0].clone() for _ in range(NUM_UPDATES)]
    weights = [value.detach().clone() for value in model.state_dict().values()]
    text = training._executable.program.text()
    training.destroy()
    return [*results, *weights], text


def by_hand(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the results of plain PyTorch in float64."""
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    results = []
    for _ in range(NUM_UPDATES):
        optimizer.zero_grad()
        parts = []
        for micro_batch in x.double().chunk(ACCUMULATION):
            result, _ = model(micro_batch)
            parts.append(result.detach())
            (result.square().mean() / ACCUMULATION).backward()
        optimizer.step()
        results.append(torch.cat(parts))
    return [*results, *(value.detach() for value in model.state_dict().values())]


def assert_close(found: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    for ours, value in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), value, rtol=1e-4, atol=1e-5)


def made(rows: int, inputs: int, hidden: int, seed: int = 0) -> tuple[Layers, torch.Tensor]:
    torch.manual_seed(seed)
    return Layers(inputs, hidden), torch.randn(ACCUMULATION * rows, inputs)


def test_layers_when_large_then_are_packed_once_a_window() -> None:
    model, x = made(64, 256, 512)
    expected = by_hand(copy.deepcopy(model), x)
    found, text = trained(model, x)
    assert_close(found, expected)
    assert text.count("poptorch_emu::pack_weight.out(") == text.count(ONCE_A_WINDOW) == 2
    assert len(re.findall(r"packed_linear\([^)]* library \)", text)) == 2
    assert "pack_weight(" not in text


@pytest.mark.parametrize("size", [(64, 256, 512), (8, 32, 40)], ids=["large", "small"])
@pytest.mark.parametrize("change", ["split", "on one worker", "remote", "recomputed"])
def test_layers_whatever_runs_them_then_have_the_same_bits(
    change: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = made(*size)
    changed, options = copy.deepcopy(model), options_of()
    if change == "split":
        changed.is_split = True
    elif change == "on one worker":
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", "1")
    elif change == "remote":
        settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setWeightLocation(settings)
    else:
        options._Popart.set("autoRecomputation", 1)
        poptorch.emulator.set_recomputation(options, "executed")
    found, text = trained(changed, x, options)
    assert "poptorch_emu::packed_linear(" in text
    for one, other in zip(trained(model, x)[0], found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("rows", "hidden", "accumulation"),
    [(3, 16, 4), (8, 1024, 4), (1024, 256, 4), (8, 16, 3), (256, 256, 3), (8, 256, 4)],
    ids=["few", "few of large", "many", "few small", "few large", "small with large weights"],
)
def test_layers_when_packing_gives_nothing_then_stay_as_they_are(
    rows: int, hidden: int, accumulation: int
) -> None:
    model, x = made(rows, 128, hidden)
    options = options_of()
    options.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(x[: rows * accumulation])
    text = training._executable.program.text()
    assert "pack_weight" not in text
    assert "packed_linear(" not in text
    training.destroy()


class Biased(nn.Module):
    """Two layers with biases, whose gradients come with those of the weights."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, inputs))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # The factor lets updates change biases by more than rounding.
        result = 10.0 * self.layers(x)
        return result, poptorch.identity_loss(result.square().mean(), "none")


# The gradients of the first size have more rows and columns than are packed at once.
@pytest.mark.parametrize("size", [(300, 1030, 520), (64, 257, 65)], ids=str)
def test_layers_by_panels_then_have_the_numbers_of_pytorch_and_the_same_bits_by_all_workers(
    size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    rows, inputs, hidden = size
    model, x = Biased(inputs, hidden), torch.randn(ACCUMULATION * rows, inputs)
    expected = by_hand(copy.deepcopy(model), x)
    found = []
    for workers in (1, 2, 3):
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
        with compiling_for(*AMD_AVX2):
            results, text = trained(copy.deepcopy(model), x)
        found.append(results)
        assert text.count("poptorch_emu::packed_linear(") == 2
        assert text.count("poptorch_emu::add_product.with_sums(") == 2
        assert text.count("poptorch_emu::product(") == 1 and "aten::mm(" not in text
    assert_close(found[0], expected)
    for layer, ours in ((0, found[0][-3]), (2, found[0][-1])):
        changes = (ours - model.layers[layer].bias.detach()).abs()
        assert changes.median() > 1e-5
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


class Shared(nn.Module):
    """One weight, read for products of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.layer(x)
        pairs = hidden.reshape(-1, 2, 128).sum(1)
        result = self.layer(torch.tanh(pairs)).repeat_interleave(2, 0) + self.layer(hidden)
        return result, poptorch.identity_loss(result.square().mean(), "none")


def test_weight_of_products_of_two_sizes_then_is_packed_for_each() -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(ACCUMULATION * 512, 128)
    expected = by_hand(copy.deepcopy(model), x)
    found, text = trained(model, x)
    assert_close(found, expected)
    assert text.count("poptorch_emu::packed_linear(") == 3


class Tied(nn.Module):
    """A weight of a layer and, untransposed, of a product, in a checkpoint and outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 8)
        self.layer = nn.Linear(32, 32)

    def both(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(nn.functional.linear(x, self.weight))
        return torch.tanh((hidden * hidden) @ self.weight)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(nn.functional.linear(self.layer(x), self.weight))
        result = self.layer(checkpoint(self.both, hidden, use_reentrant=False))
        return result, poptorch.identity_loss(result.square().mean(), "none")


@pytest.mark.parametrize("is_remote", [False, True])
def test_layers_that_are_computed_again_then_pack_a_weight_once(is_remote: bool) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(ACCUMULATION * 8, 32)
    expected = by_hand(copy.deepcopy(model), x)
    options = options_of()
    poptorch.emulator.set_recomputation(options, "executed")
    if is_remote:
        away = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setWeightLocation(away.minElementsForOffChip(0))
    found, text = trained(model, x, options)
    assert_close(found, expected)
    backward = text[text.index("backward 0 on") :]
    assert "poptorch_emu::packed_linear(" in backward
    (link,) = re.findall(r"link forward 0 -> backward 0: (.*)", text)
    forward = text[text.index("\nforward 0 on") : text.index("backward 0 on")]
    packed = re.findall(r"(%\d+) = .*(?:of prepare |pack_weight\()", forward)
    assert packed and not set(packed) & set(link.partition("->")[0].split())


def test_products_without_packed_weights_then_are_computed_again_too() -> None:
    class TwoLayers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))

        def both(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layers[1](torch.relu(self.layers[0](x))))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            result = checkpoint(self.both, x, use_reentrant=False)
            return result, poptorch.identity_loss(result.square().mean(), "none")

    torch.manual_seed(0)
    options = options_of()
    options.Training.gradientAccumulation(2)  # Weights are not packed for so few products.
    poptorch.emulator.set_recomputation(options, "executed")
    _, text = trained(TwoLayers(), torch.randn(16, 32), options)
    backward = text[text.index("backward 0 on") :]
    # Backward recomputes the first layer, and computes the gradient of the second layer's input.
    assert backward.count("poptorch_emu::product(") == 2


class Chain(nn.Module):
    """Layers that follow each other directly; the first one has a separate addition of its bias."""

    def __init__(self, *, is_split: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 128) / 16)
        self.bias = nn.Parameter(torch.randn(128))
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))
        self.is_split = is_split

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layers[0](x @ self.weight.t() + self.bias)
        if self.is_split:
            # The second stage also reads the weights of the first stage.
            poptorch.Block.start("second", ipu_id=1)
        result = self.layers[0](self.layers[1](x)) + x @ self.weight.t()
        return result, poptorch.identity_loss(result.square().mean(), "none")


@pytest.mark.parametrize("is_split", [False, True])
def test_layers_that_follow_each_other_then_have_the_numbers_of_pytorch(is_split: bool) -> None:
    torch.manual_seed(0)
    model, x = Chain(is_split=is_split), torch.randn(ACCUMULATION * 256, 128)
    expected = by_hand(copy.deepcopy(model), x)
    found, text = trained(model, x)
    assert_close(found, expected)
    assert text.count("poptorch_emu::packed_linear(") == 5
    assert "aten::addmm(" not in text


@pytest.mark.parametrize("size", [(64, 256, 512), (8, 32, 40)], ids=["large", "small"])
def test_weights_when_the_user_changes_them_then_are_packed_again(
    size: tuple[int, int, int],
) -> None:
    model, x = made(*size)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0)
    training = poptorch.trainingModel(model, options_of(), optimizer)
    before = training(x)[0].clone()
    with torch.no_grad():
        model.second.weight.mul_(2.0)
        model.first.weight.mul_(0.5)
    training.copyWeightsToDevice()
    found = training(x)[0]
    exact = torch.cat([model(part)[0] for part in x.chunk(ACCUMULATION)]).detach()
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, before, rtol=0.1)
    training.destroy()


SIZES = st.integers(1, 9) | st.integers(257, 262)


@pytest.mark.parametrize("kernel", [Kernel.LIBRARY, Kernel.SMALL, Kernel.PANELS])
@settings(max_examples=20)
@given(st.integers(1, 9), SIZES, SIZES, st.integers(0, 999))
def test_layers_of_any_size_then_have_the_numbers_of_pytorch(
    kernel: Kernel, rows: int, inputs: int, hidden: int, seed: int
) -> None:
    model, x = made(rows, inputs, hidden, seed)
    expected = by_hand(copy.deepcopy(model), x)
    with choosing(Role.LAYER, kernel, is_packed=True):
        found, text = trained(model, x)
    assert_close(found, expected)
    assert text.count("poptorch_emu::packed_linear(") == 2
