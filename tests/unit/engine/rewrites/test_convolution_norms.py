"""Convolutions for inference: batch norms and ReLUs are folded into them, with equal numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.inference_ways import (
    off_chip,
    plain_and_other,
    through_blocks,
    two_replicas,
    unchanged,
)
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine import onednn
from poptorch_emu.engine.layout import channels_last

X = (2, 6, 8, 10)
NORM = "aten::native_batch_norm"
PACKED = "mkldnn::_convolution_pointwise"


def norm(channels: int, kind: type[nn.Module] = nn.BatchNorm2d, **settings: object) -> nn.Module:
    """Returns a batch norm with statistics of some data."""
    made = kind(channels, **settings)
    if made.running_mean is not None:
        nn.init.normal_(made.running_mean)
        nn.init.uniform_(made.running_var, 0.1, 2.0)
    if made.affine:
        nn.init.normal_(made.weight)
        nn.init.normal_(made.bias)
    return made


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(6, 8, 3, padding=1, bias=False), norm(8)
        self.second, self.second_norm = nn.Conv2d(8, 6, 3, padding=1, groups=2), norm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + x)


class Shown(nn.Module):
    """A body that also uses the convolution's result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(6, 4, 1), norm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, torch.relu(self.norm(y))


class Normed(nn.Module):
    """A body that also uses the norm's result before its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(6, 4, 3, 2, 1, dilation=2), norm(4, eps=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        return torch.relu(y) + y.mean((2, 3), keepdim=True)


class Twice(nn.Module):
    """Two convolutions with one weight; a norm follows only one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(6, 6, 3, padding=1), norm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.norm(self.layer(x)))


class OfBatch(nn.Module):
    """A norm without running statistics, which uses those of its batch in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(6, 4, 3), norm(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.layer(x)))


# For each case: the body, and the number of norms that are left.
BODIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "one": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3), norm(4), nn.ReLU()), 0),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3, bias=False), norm(4)), 0),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3), norm(4, affine=False)), 0),
    "neither": (
        lambda: nn.Sequential(nn.Conv2d(6, 4, 3, bias=False), norm(4, affine=False), nn.ReLU()),
        0,
    ),
    "residual": (Residual, 0),
    "shown": (Shown, 1),
    "normed": (Normed, 0),
    "twice": (Twice, 0),
    "of its batch": (OfBatch, 1),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(6, 4, 2, 2), norm(4), nn.ReLU()), 1),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), norm(6), nn.ReLU(), nn.Conv2d(6, 2, 1)),
        0,
    ),
    "pooled": (
        lambda: nn.Sequential(nn.Conv2d(6, 4, 3), norm(4), nn.ReLU(), nn.MaxPool2d(2)),
        0,
    ),
    "in one dimension": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(6, 4, 3), norm(4, nn.BatchNorm1d)),
        0,
    ),
    "in three dimensions": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.Conv3d(2, 4, 2, padding=1), norm(4, nn.BatchNorm3d)
        ),
        0,
    ),
    "norm first": (lambda: nn.Sequential(norm(6), nn.Conv2d(6, 4, 3)), 1),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return BODIES[name][0]().eval()


def text_of(executor: poptorch.PoplarExecutor) -> str:
    return executor._executable.program.text()


@pytest.mark.parametrize("has_channels_last", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_inference_of_convolutions_equals_plain_pytorch(name, has_channels_last, monkeypatch):
    monkeypatch.setattr(channels_last, "_pays", bool if has_channels_last else lambda found: False)
    model, inference = made(name), poptorch.inferenceModel(made(name))
    for _ in range(2):
        x = torch.randn(X)
        torch.testing.assert_close(inference(x), model(x), rtol=1e-4, atol=1e-5)
    assert text_of(inference).count(NORM) == BODIES[name][1]
    if has_channels_last and onednn.IS_AVAILABLE:
        is_image = any(isinstance(part, nn.Conv2d) for part in model.modules())
        assert (PACKED in text_of(inference)) is is_image


@pytest.mark.parametrize("name", ["one", "residual", "depthwise", "pooled"])
def test_a_nan_when_a_relu_follows_then_is_there_as_in_plain_pytorch(name, monkeypatch):
    monkeypatch.setattr(channels_last, "_pays", bool)
    x = torch.randn(X)
    x[0, 1, 3, 4] = torch.nan
    expected = made(name)(x)
    assert 0 < expected.isnan().sum() < expected.numel()
    result = poptorch.inferenceModel(made(name))(x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_trained_batch_norms_then_are_folded_anew_after_each_call_of_training():
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = made("one")
            self.body.train()

        def forward(self, x: torch.Tensor):
            y = self.body(x)
            return (y, poptorch.identity_loss(y * y, "mean")) if self.training else y

    model = Trained()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    inference = poptorch.inferenceModel(model)
    x = torch.randn(X)
    results = []
    for _ in range(3):
        model.train()
        training(torch.randn(X))
        model.eval()
        result = inference(x)
        torch.testing.assert_close(result, model.body(x), rtol=1e-4, atol=1e-5)
        results.append(result)
    assert not torch.equal(results[0], results[1])
    assert NORM not in text_of(inference)


class Staged(nn.Module):
    """Convolutions, norms and ReLUs with blocks between them."""

    def __init__(self, cuts: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cuts = cuts
        self.parts = nn.ModuleList(
            [
                nn.Conv2d(6, 8, 3, padding=1),
                norm(8),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, bias=False),
                norm(8),
                nn.MaxPool2d(2),
                nn.Conv2d(8, 3, 1),
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
        ((2, 4), off_chip),
        ((1, 4), two_replicas),
    ],
    ids=["before the norm", "before each", "off chip", "replicas"],
)
def test_bits_do_not_depend_on_stages_places_replicas_or_workers(
    cuts, change, workers, monkeypatch
):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    x = torch.randn(16, *X[1:], generator=torch.Generator().manual_seed(1))
    results = []
    for inference, result in plain_and_other(Staged, cuts, change, x):
        results.append(result)
        assert NORM not in text_of(inference)
        assert results[-1].is_contiguous()
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], Staged(()).eval()(x), rtol=1e-4, atol=1e-5)


def test_executable_when_saved_and_loaded_then_folds_what_it_is_given(tmp_path):
    x = torch.randn(X)
    poptorch.inferenceModel(made("residual")).compileAndExport(
        tmp_path / "file", x, export_model=False
    )
    model = made("residual")
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean += 1
            part.running_var *= 2
    loaded = poptorch.inferenceModel(model)
    loaded.loadExecutable(tmp_path / "file")
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    assert NORM not in text_of(loaded)
