"""Linear layers for inference, packed for each kernel: plain PyTorch's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from support.inference_ways import (
    Change,
    off_chip,
    plain_and_other,
    sharded,
    through_blocks,
    two_replicas,
    unchanged,
)
from support.processors import (
    AMD_AVX2,
    choosing,
    compiling_for,
    needs_mkl,
    needs_onednn,
    needs_vectors,
)
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.product_kernels import Kernel, Role

ONEDNN_LAYER = "mkldnn::_linear_pointwise("
OUR_LAYER = "poptorch_emu::packed_linear("
BATCH = 8


@pytest.fixture(
    params=[
        pytest.param(Kernel.ONEDNN, marks=needs_onednn),
        pytest.param(Kernel.LIBRARY, marks=needs_mkl),
        pytest.param(Kernel.SMALL, marks=needs_vectors),
        pytest.param(Kernel.PANELS, marks=needs_vectors),
    ],
    ids=lambda kernel: kernel.name,
)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Makes the compiler pack layers of any size for one kernel."""
    with choosing(Role.FIXED_LAYER, request.param, is_packed=True):
        yield request.param


class Twice(nn.Module):
    """Uses the result of a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.relu(y) * y


class Given(nn.Module):
    """Returns the result of a layer, and its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, torch.relu(y)


class Added(nn.Module):
    """Products with another addend than a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.t()
        a = torch.add(y, self.other, alpha=2)
        b = x @ self.weight.t() + x
        c = (x @ self.weight.t()).view(-1, 2, 3) + self.other.view(2, 3)
        d = torch.add(x @ self.weight.t() + self.other, self.other)
        e = torch.addmm(x, x, self.weight.t())
        f = torch.addmm(self.other, x, self.weight.t(), alpha=0.5)
        g = x @ self.weight + (self.other * 2) + 1.5
        return torch.relu(a + b + d + e + f + g) + c.reshape(-1, 6)


class Attention(nn.Module):
    """Attention as a layer of PyTorch, with its projections."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.front = nn.Linear(6, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.front(x).view(x.shape[0], 3, 8))


class Written(nn.Module):
    """A layer whose weight is a buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, self.weight)
        self.weight.mul_(0.5)
        return y


class Half(nn.Module):
    """A layer in another type, with a converted weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.half()).float() @ self.layer.weight.float().t()


BODIES: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.Linear(6, 5),
    "no bias": lambda: nn.Linear(6, 5, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU6()),
    "rows of rows": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ),
    "transposed rows": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.Flatten(0, 1), nn.Linear(2, 4), nn.Unflatten(0, (-1, 3))
    ),
    "twice": Twice,
    "given": Given,
    "added": Added,
    "attention": Attention,
    "other types": Half,
}
NUM_LAYERS = {
    "layer": 1,
    "no bias": 1,
    "relu": 2,
    "rows of rows": 2,
    "transposed rows": 1,
    "twice": 1,
    "given": 1,
    "added": 5,
    "attention": 5,
    "other types": 2,
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return BODIES[name]().eval()


def wrapped(model: nn.Module, **settings: object) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    for name, value in settings.items():
        getattr(options, name)(value)
    return poptorch.inferenceModel(model, options)


def num_layers(text: str, kernel: Kernel) -> int:
    """Counts the layers of a program that use a kernel."""
    if kernel is Kernel.ONEDNN:
        return text.count(ONEDNN_LAYER)
    return len(re.findall(rf"packed_linear\([^)]* {kernel.name.lower()} \)", text))


def text_of(executor: poptorch.PoplarExecutor) -> str:
    return executor._executable.program.text()


@pytest.mark.parametrize("name", BODIES)
def test_packed_layers_equal_plain_pytorch(name, kernel):
    model, x = made(name), torch.randn(BATCH, 6)
    expected = model(x)
    inference = wrapped(made(name))
    for _ in range(2):
        torch.testing.assert_close(inference(x), expected)
    assert num_layers(text_of(inference), kernel) == NUM_LAYERS[name]


def test_a_nan_when_a_relu_follows_then_is_there_as_in_plain_pytorch(kernel):
    model, x = made("relu"), torch.randn(BATCH, 6)
    x[2, 3] = torch.nan
    inference = wrapped(model)
    torch.testing.assert_close(inference(x), model(x), equal_nan=True)
    assert model(x).isnan().sum() == 3
    assert num_layers(text_of(inference), kernel) == 2


def test_weight_that_calls_change_then_is_not_packed(kernel):
    torch.manual_seed(0)
    plain, emulated = Written(), Written()
    emulated.load_state_dict(plain.state_dict())
    x = torch.randn(BATCH, 6)
    inference = wrapped(emulated)
    for _ in range(3):
        torch.testing.assert_close(inference(x), plain(x))
    assert num_layers(text_of(inference), kernel) == 0


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "change",
    [
        lambda options: options.Training.gradientAccumulation(1),
        lambda options: options.Precision.enableFloatingPointExceptions(True),
        lambda options: options.Precision.enableStochasticRounding(True),
    ],
    ids=["training", "exceptions", "rounding"],
)
def test_layers_then_are_left_alone_where_weights_or_operations_are_watched(change, request):
    model = Given()
    options = poptorch.Options()
    change(options)
    if "training" in request.node.name:
        model = nn.Sequential(model, _Loss())
        executor = poptorch.trainingModel(
            model, options, torch.optim.SGD(model.parameters(), lr=0.1)
        )
    else:
        executor = poptorch.inferenceModel(model, options)
    executor.compile(torch.randn(BATCH, 6))
    text = text_of(executor)
    assert ONEDNN_LAYER not in text and OUR_LAYER not in text
    assert "prepare forward" not in text


class _Loss(nn.Module):
    def forward(self, values: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return poptorch.identity_loss(values[0] + values[1], "mean")


@needs_vectors
def test_weight_that_two_kernels_read_then_serves_both():
    torch.manual_seed(0)
    model, x, y = TwoKernels(), torch.randn(16, 256), torch.randn(256, 256)
    with compiling_for(*AMD_AVX2):
        inference = poptorch.inferenceModel(model)
        for _ in range(2):
            torch.testing.assert_close(inference(x, y), model(x, y))
    text = text_of(inference)
    assert num_layers(text, Kernel.SMALL) == num_layers(text, Kernel.PANELS) == 1


class TwoKernels(nn.Module):
    """One weight, read for a small product and for a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), self.layer(y)


class SharedSizes(nn.Module):
    """Layers with one weight and inputs of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        pairs = self.layer(y.view(-1, 2, 6).sum(1)).repeat_interleave(2, 0)
        return self.layer(y) + pairs


def test_layers_with_one_weight_then_have_the_numbers_of_pytorch(kernel):
    torch.manual_seed(0)
    model, x = SharedSizes(), torch.randn(BATCH, 6)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x))
    assert num_layers(text_of(inference), kernel) == 3


def test_layers_when_the_user_changes_weights_then_are_packed_again(kernel):
    torch.manual_seed(0)
    model, x = Staged(()), torch.randn(BATCH, 6)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(x), model(x))
    assert num_layers(text_of(inference), kernel) == 3


class Staged(nn.Module):
    """Layers whose parts (weight, product, bias, ReLU) may be in different blocks."""

    def __init__(self, cuts: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cuts = cuts
        self.weight, self.bias = nn.Parameter(torch.randn(12, 6)), nn.Parameter(torch.randn(12))
        self.layer, self.last = nn.Linear(12, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = [
            lambda x: (x, self.weight.t()),
            lambda given: given[0] @ given[1],
            lambda y: y + self.bias,
            torch.relu,
            self.layer,
            torch.relu,
            self.last,
        ]
        return through_blocks(steps, self.cuts, x)


WAYS: dict[str, tuple[tuple[int, ...], Change]] = {
    "before the product": ((1,), unchanged),
    "before the bias": ((2,), unchanged),
    "before each": ((1, 2, 3, 4, 5, 6), unchanged),
    "before the ReLU, sharded": ((3, 5), sharded),
    "off chip": ((2, 4), off_chip),
    "replicas": ((3,), two_replicas),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_bits_do_not_depend_on_stages_places_replicas_or_workers(way, workers, kernel, monkeypatch):
    cuts, change = WAYS[way]
    x = torch.randn(8 * BATCH, 6, generator=torch.Generator().manual_seed(1))
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    results = []
    for inference, result in plain_and_other(Staged, cuts, change, x):
        results.append(result)
        assert num_layers(text_of(inference), kernel) == 3
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], Staged(())(x))


def test_executable_when_saved_and_loaded_then_packs_the_weights_it_is_given(tmp_path, kernel):
    x = torch.randn(BATCH, 6)
    first = wrapped(made("relu"))
    first.compileAndExport(tmp_path / "file", x, export_model=False)
    model = made("relu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    second = wrapped(model)
    second.loadExecutable(tmp_path / "file")
    torch.testing.assert_close(second(x), model(x))
    assert num_layers(text_of(second), kernel) == 2


class Chain(nn.Module):
    """A product with a separate addition of its bias, and a layer that follows it directly."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 12))
        self.bias = nn.Parameter(torch.randn(16))
        self.layer = nn.Linear(16, 8)

    def forward(self, x):
        return self.layer(x @ self.weight.t() + self.bias)


def test_layers_that_follow_each_other_then_have_the_numbers_of_pytorch(kernel):
    torch.manual_seed(0)
    model, x = Chain().eval(), torch.randn(8, 12)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    assert num_layers(text_of(inference), kernel) == 2


# Each size exceeds a tile, a panel or a block of each kernel.
INPUTS, OUTPUTS, ROWS = 300, 310, 24


def wide() -> nn.Module:
    """Returns layers with and without a bias, the last of which is a small one."""
    torch.manual_seed(0)
    layers = (
        nn.Linear(INPUTS, OUTPUTS),
        nn.ReLU(),
        nn.Linear(OUTPUTS, 7, bias=False),
        nn.Linear(7, 5),
    )
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, {}), (torch.float16, {"rtol": 4e-3, "atol": 4e-3})]
)
def test_wide_layers_then_have_the_numbers_of_pytorch(
    workers, replicas, dtype, tolerance, kernel, monkeypatch
):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    model, x = wide().to(dtype), torch.randn(8 * ROWS, INPUTS).to(dtype)
    inference = wrapped(
        wide().to(dtype), deviceIterations=8 // replicas, replicationFactor=replicas
    )
    for _ in range(2):
        torch.testing.assert_close(inference(x), model(x), **tolerance)
    assert num_layers(text_of(inference), kernel) == 3


@pytest.mark.usefixtures("kernel")
def test_weights_when_they_are_written_then_the_next_call_has_them():
    model, x = wide(), torch.randn(ROWS, INPUTS)
    inference = wrapped(model)
    inference.compile(x)
    for factor in (1.0, 2.0, -0.5):
        with torch.no_grad():
            model[0].weight.mul_(factor)
        inference.copyWeightsToDevice()
        plain = wide()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(inference(x), plain(x))
