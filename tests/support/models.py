"""Small models of each family, cut into blocks; each returns (output, loss)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch

Batch = tuple[torch.Tensor, ...]


class Staged(nn.Module):
    """Runs `parts` one after another, spread evenly over `num_stages` blocks; then a loss."""

    def __init__(self, parts: list[nn.Module], num_stages: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.num_stages = num_stages

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for index, part in enumerate(self.parts):
            with poptorch.Block(f"part{index}", ipu_id=index * self.num_stages // len(self.parts)):
                x = part(x)
        with poptorch.Block("loss", ipu_id=self.num_stages - 1):
            return x, F.cross_entropy(x, labels)


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class LastStep(nn.Module):
    """A recurrent layer of which only the last output is used."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]


class MeanOverSteps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


@dataclass(frozen=True)
class Family:
    """Functions that create a kind of model, and its batches of a number of rows."""

    make: Callable[[int], nn.Module]
    batch: Callable[[int], Batch]


def _mlp(num_stages: int) -> nn.Module:
    sizes = (8, 16, 12, 10, 4)
    layers = [
        nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(sizes, sizes[1:], strict=False)
    ]
    return Staged(layers, num_stages)


def _mnist(num_stages: int) -> nn.Module:
    parts = [
        nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(320, 32), nn.ReLU()),
        nn.Linear(32, 10),
    ]
    return Staged(parts, num_stages)


def _resnet(num_stages: int) -> nn.Module:
    parts = [
        nn.Conv2d(3, 4, 3),
        ResidualBlock(4),
        ResidualBlock(4),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
    ]
    return Staged(parts, num_stages)


def _transformer(num_stages: int) -> nn.Module:
    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    head = nn.Sequential(MeanOverSteps(), nn.Linear(16, 6))
    return Staged([nn.Linear(8, 16), layer(), layer(), head], num_stages)


def _lstm(num_stages: int) -> nn.Module:
    parts = [
        nn.Linear(5, 8),
        LastStep(nn.LSTM(8, 12, num_layers=2, batch_first=True)),
        nn.Linear(12, 8),
        nn.Linear(8, 4),
    ]
    return Staged(parts, num_stages)


def _embedding(num_stages: int) -> nn.Module:
    parts = [nn.Embedding(20, 12), nn.Linear(12, 12), MeanOverSteps(), nn.Linear(12, 7)]
    return Staged(parts, num_stages)


def _images(channels: int, side: int, classes: int) -> Callable[[int], Batch]:
    return lambda rows: (
        torch.randn(rows, channels, side, side),
        torch.randint(classes, (rows,)),
    )


FAMILIES = {
    "mlp": Family(_mlp, lambda rows: (torch.randn(rows, 8), torch.randint(4, (rows,)))),
    "mnist": Family(_mnist, _images(1, 28, 10)),
    "resnet": Family(_resnet, _images(3, 10, 5)),
    "transformer": Family(
        _transformer, lambda rows: (torch.randn(rows, 6, 8), torch.randint(6, (rows,)))
    ),
    "lstm": Family(_lstm, lambda rows: (torch.randn(rows, 7, 5), torch.randint(4, (rows,)))),
    "embedding": Family(
        _embedding, lambda rows: (torch.randint(20, (rows, 6)), torch.randint(7, (rows,)))
    ),
}
