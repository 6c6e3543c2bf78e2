"""The models that are timed; each returns (output, loss) for (inputs, labels)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch


@dataclass(frozen=True)
class Case:
    """One model with its batching.

    Attributes:
        make: makes the model.
        batch: makes inputs and labels of a number of rows.
        rows: rows of a micro-batch.
        accumulation: micro-batches of an update.
        iterations: updates of a call.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    rows: int
    accumulation: int
    iterations: int


class Staged(nn.Module):
    """Runs its parts, each on the IPU of the same number in `ipus`, and then a loss."""

    def __init__(self, parts: list[nn.Module], ipus: list[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.ipus = ipus

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for index, part in enumerate(self.parts):
            with poptorch.Block(f"part{index}", ipu_id=self.ipus[index]):
                x = part(x)
        with poptorch.Block("loss", ipu_id=self.ipus[-1]):
            return x, F.cross_entropy(x, labels)


class Last(nn.Module):
    """The output of the last step of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


class Residual(nn.Module):
    """Two convolutions with batch norm, and the way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class Bottleneck(nn.Module):
    """Three convolutions with batch norm, the middle one narrow, and the way around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normed(channels, width, 1, 1),
            nn.ReLU(inplace=True),
            *_normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normed(width, 4 * width, 1, 1),
        )
        is_same = stride == 1 and channels == 4 * width
        around = (
            nn.Identity() if is_same else nn.Sequential(*_normed(channels, 4 * width, 1, stride))
        )
        self.around = around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.around(x), inplace=True)


def _normed(channels: int, width: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
    return convolution, nn.BatchNorm2d(width)


class ResNet50Like(nn.Module):
    """The layers of ResNet-50 with a loss."""

    def __init__(self) -> None:
        super().__init__()
        parts = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(count):
                parts.append(Bottleneck(channels, width, stride if index == 0 else 1))
                channels = 4 * width
        pool = nn.AdaptiveAvgPool2d(1)
        self.body = nn.Sequential(*parts, pool, nn.Flatten(), nn.Linear(channels, 1000))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), labels)


def _mnist() -> nn.Module:
    parts = [
        nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(320, 256), nn.ReLU()),
        nn.Linear(256, 10),
    ]
    return Staged(parts, [0, 1, 2, 3])


def _mlp() -> nn.Module:
    return Staged([nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))], [0])


def _transformer() -> nn.Module:
    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)

    return Staged([layer(), layer(), nn.Sequential(Mean(), nn.Linear(64, 10))], [0, 0, 0])


def _resnet() -> nn.Module:
    parts = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Sequential(Residual(16), Residual(16), Residual(16)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    ]
    return Staged(parts, [0, 0, 0])


def _lstm() -> nn.Module:
    return Staged([Last(nn.LSTM(16, 64, batch_first=True)), nn.Linear(64, 10)], [0, 0])


def _batch(classes: int, *shape: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda rows: (torch.randn(rows, *shape), torch.randint(classes, (rows,)))


CASES = {
    "mnist": Case(_mnist, _batch(10, 1, 28, 28), rows=8, accumulation=8, iterations=2),
    "mlp": Case(_mlp, _batch(4, 8), rows=4, accumulation=1, iterations=16),
    "transformer": Case(_transformer, _batch(10, 32, 64), rows=8, accumulation=2, iterations=2),
    "resnet": Case(_resnet, _batch(10, 3, 16, 16), rows=8, accumulation=2, iterations=2),
    "lstm": Case(_lstm, _batch(10, 32, 16), rows=8, accumulation=2, iterations=2),
}
