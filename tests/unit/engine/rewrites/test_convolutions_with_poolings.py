"""Convolutions of few channels, fused with their pooling: plain PyTorch's numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from support.inference_ways import plain_and_other, through_blocks, two_replicas, unchanged
from support.processors import needs_onednn, needs_vectors, on_any_processor
from support.rewrites import leave_out
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine import product_kernels
from poptorch_emu.engine.product_kernels import Kernel, Role
from poptorch_emu.engine.rewrites.pooled_convolution import pool_convolutions

pytestmark = needs_onednn
POOLED = "poptorch_emu::pooled_convolution("
X = (4, 3, 20, 22)


def pool_from(monkeypatch: pytest.MonkeyPatch, fewest: int, kernel: Kernel = Kernel.DIRECT) -> None:
    """Allows the rewrite on any processor, from a number of multiplications on.

    Without vectors of our own, oneDNN is the only kernel.
    """
    limit = range(fewest, sys.maxsize)
    rows = on_any_processor(Role.POOLED_CONVOLUTION, multiplications=limit)
    table = sorted(rows, key=lambda row: row.kernel is not kernel)
    monkeypatch.setattr(product_kernels, "TABLE", tuple(table))


@pytest.fixture(autouse=True)
def _any_size_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows the rewrite for small convolutions, and on any processor."""
    pool_from(monkeypatch, 1)


class Shown(nn.Module):
    """A body that also returns the convolution's result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, torch.max_pool2d(y, 2)


class Placed(nn.Module):
    """A body that reads the positions of the maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.max_pool2d(self.layer(x), 2, return_indices=True)


class Read(nn.Module):
    """A body that also reads the pooled values before the ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(self.layer(x), 2)
        return torch.relu(y) - y


class Made(nn.Module):
    """A convolution whose weight is computed in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.max_pool2d(torch.conv2d(x, self.weight * x.mean()), 2)


def norm() -> nn.Module:
    part = nn.BatchNorm2d(6)
    nn.init.normal_(part.running_mean)
    nn.init.uniform_(part.running_var, 0.5, 2)
    return part


# For each case: the body, and the number of convolutions that are fused with their pooling.
BODIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "relu last": (lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU()), 1),
    "relu first": (lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)), 1),
    "both": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()),
        1,
    ),
    "no relu": (lambda: nn.Sequential(nn.Conv2d(3, 6, 5, bias=False), nn.MaxPool2d(2)), 1),
    "strange": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 20, (3, 2), (1, 2), (1, 0), (2, 1)),
            nn.MaxPool2d((3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True),
        ),
        1,
    ),
    "two": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 10, 3), nn.MaxPool2d(2)
        ),
        2,
    ),
    "then channels last": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3), nn.Conv2d(8, 8, 3)
        ),
        1,
    ),
    "norm": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), norm(), nn.ReLU(), nn.MaxPool2d(2)), 1),
    "shown": (Shown, 0),
    "places": (Placed, 0),
    "read": (Read, 1),
    "made": (Made, 0),
    "groups": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.MaxPool2d(2)), 0),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 3), nn.MaxPool2d(2)), 0),
    "many channels": (lambda: nn.Sequential(nn.Conv2d(3, 129, 3), nn.MaxPool2d(2)), 0),
    "many inputs": (
        lambda: nn.Sequential(nn.Conv2d(3, 17, 1), nn.Conv2d(17, 8, 3), nn.MaxPool2d(2)),
        0,
    ),
    "mean": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AvgPool2d(2)), 0),
    "in one dimension": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 6, 3), nn.MaxPool1d(2)),
        0,
    ),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return BODIES[name][0]().eval()


def images() -> torch.Tensor:
    return torch.randn(X, generator=torch.Generator().manual_seed(1))


def text_of(executor: poptorch.PoplarExecutor) -> str:
    return executor._executable.program.text()


@pytest.mark.parametrize(
    "kernel", [Kernel.ONEDNN, pytest.param(Kernel.DIRECT, marks=needs_vectors)]
)
@pytest.mark.parametrize("name", BODIES)
def test_pooled_convolutions_equal_plain_pytorch(name, kernel, monkeypatch):
    """Our own kernel has strides of 1 only."""
    pool_from(monkeypatch, 1, kernel)
    x, inference = images(), poptorch.inferenceModel(made(name))
    for _ in range(2):
        # Indices are integers of 32 bits on an IPU.
        torch.testing.assert_close(
            inference(x), made(name)(x), rtol=1e-4, atol=1e-5, check_dtype=name != "places"
        )
    is_strided = name == "strange" and kernel is Kernel.DIRECT
    assert text_of(inference).count(POOLED) == (0 if is_strided else BODIES[name][1])


@pytest.mark.parametrize("name", ["relu last", "relu first", "both", "norm"])
def test_relu_and_pooling_then_are_no_operations_any_more(name):
    inference = poptorch.inferenceModel(made(name))
    inference.compile(images())
    assert "image_max_pool(" not in text_of(inference) and "aten::relu(" not in text_of(inference)


@pytest.mark.parametrize("name", ["relu last", "relu first", "no relu"])
def test_numbers_then_are_close_to_those_of_a_program_without_it(name, monkeypatch):
    x = images()
    result = poptorch.inferenceModel(made(name))(x)
    leave_out(monkeypatch, pool_convolutions)
    other = poptorch.inferenceModel(made(name))
    torch.testing.assert_close(other(x), result, rtol=1e-5, atol=1e-5)
    assert POOLED not in text_of(other)


@pytest.mark.parametrize("name", ["relu last", "relu first", "both", "norm"])
def test_a_nan_then_is_there_as_in_plain_pytorch(name):
    x = images()
    x[0, 1, 3, 4] = torch.nan
    expected = made(name)(x)
    assert 0 < expected.isnan().sum() < expected.numel()
    result = poptorch.inferenceModel(made(name))(x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


class Staged(nn.Module):
    """Convolutions, poolings and ReLUs with blocks between them."""

    def __init__(self, cuts: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cuts = cuts
        self.parts = nn.ModuleList(
            [
                nn.Conv2d(3, 6, 3),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Conv2d(6, 10, 3),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return through_blocks(self.parts, self.cuts, x)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("cuts", "change"),
    [
        ((1,), unchanged),
        ((1, 2, 3, 4, 5, 6), unchanged),
        ((2, 5), two_replicas),
    ],
    ids=["before the pooling", "before each", "replicas"],
)
def test_bits_do_not_depend_on_stages_replicas_or_workers(cuts, change, workers, monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    x = torch.randn(16, *X[1:], generator=torch.Generator().manual_seed(1))
    results = []
    for inference, result in plain_and_other(Staged, cuts, change, x):
        results.append(result)
        assert text_of(inference).count(POOLED) == 2
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], Staged(()).eval()(x), rtol=1e-4, atol=1e-5)


def test_weights_when_the_user_changes_them_then_are_those_of_the_next_call():
    model, x = made("norm"), images()
    inference = poptorch.inferenceModel(model)
    inference.compile(x)
    for factor in (1.0, 2.0, -0.5):
        with torch.no_grad():
            model[0].weight.mul_(factor)
        inference.copyWeightsToDevice()
        torch.testing.assert_close(inference(x), model(x), rtol=1e-4, atol=1e-5)
    assert POOLED in text_of(inference)


@pytest.mark.parametrize("fewest", [20 * 18 * 6 * 4 * 27, 20 * 18 * 6 * 4 * 27 + 1])
def test_convolution_of_few_multiplications_then_stays(fewest, monkeypatch):
    """The result is [4, 6, 18, 20], each of 3 * 3 * 3 products."""
    pool_from(monkeypatch, fewest)
    inference = poptorch.inferenceModel(made("norm"))
    inference.compile(images())
    assert (POOLED in text_of(inference)) is (fewest == 20 * 18 * 6 * 4 * 27)


def test_training_then_has_none():
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = made("relu last")

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.body(x)
            return y, poptorch.identity_loss(y * y, "mean")

    model = Trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, optimizer=optimizer)
    training.compile(images())
    assert POOLED not in text_of(training)
