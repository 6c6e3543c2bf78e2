"""The models of the speed benchmarks; each returns (output, loss) for (inputs, labels)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch


@dataclass(frozen=True)
class Case:
    """One model with its batching.

    Attributes:
        make: function that returns the model.
        batch: function that returns inputs and labels for a number of rows.
        rows: number of rows in a micro-batch.
        accumulation: number of micro-batches in an update.
        iterations: number of updates in a call; in inference, number of micro-batches.
        make_optimizer: function that returns the optimiser of parameters; `None` for inference.
        mixes_rows: whether a layer's result for a row depends on other rows of its micro-batch.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    rows: int
    accumulation: int
    iterations: int
    make_optimizer: Callable[..., torch.optim.Optimizer] | None
    mixes_rows: bool = False

    @property
    def is_plain_sgd(self) -> bool:
        """Whether an update does not change rows whose gradients are zero."""
        return self.make_optimizer is _SGD

    @property
    def has_images(self) -> bool:
        """Whether the inputs are images (N, C, H, W)."""
        return self.batch(1)[0].dim() == 4

    @property
    def samples(self) -> int:
        """Number of rows in a call."""
        return self.rows * self.accumulation * self.iterations

    def in_half(self) -> Case:
        """Returns the same case with float16 weights and inputs."""

        def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
            inputs, labels = self.batch(rows)
            return inputs.half() if inputs.is_floating_point() else inputs, labels

        return replace(self, make=lambda: self.make().half(), batch=batch)


class Staged(nn.Module):
    """Runs its parts, each on the IPU given in `ipus`, and then a loss."""

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


class Classes(nn.Module):
    """Moves the classes of each position to the dimension that the cross entropy expects."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


class Residual(nn.Module):
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


class Bottleneck(nn.Module):
    """Three convolutions with batch norm, the middle one narrow, and a residual connection."""

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
    first = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return Staged([first, nn.Linear(64, 8)], [0, 1])


def _encoder(width: int, num_layers: int, num_stages: int, vocabulary: int = 0) -> nn.Module:
    """Returns encoder layers in equal stages with a head, and an embedding if requested."""
    layers = [
        nn.TransformerEncoderLayer(width, width // 32, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(num_layers)
    ]
    per_stage = num_layers // num_stages
    parts = [nn.Sequential(*layers[i : i + per_stage]) for i in range(0, num_layers, per_stage)]
    if vocabulary:
        parts[0] = nn.Sequential(nn.Embedding(vocabulary, width), *parts[0])
        parts[-1] = nn.Sequential(*parts[-1], nn.Linear(width, vocabulary), Classes())
    else:
        parts[-1] = nn.Sequential(*parts[-1], Mean(), nn.Linear(width, 10))
    return Staged(parts, list(range(num_stages)))


def _resnet() -> nn.Module:
    """Returns a residual network for images of 32 x 32, with batch norm, in four stages."""
    parts = [
        nn.Sequential(*_normed(3, 32, 3, 1), nn.ReLU(), Residual(32)),
        nn.Sequential(*_normed(32, 64, 3, 2), nn.ReLU(), Residual(64)),
        nn.Sequential(*_normed(64, 128, 3, 2), nn.ReLU(), Residual(128)),
        nn.Sequential(Residual(128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    ]
    return Staged(parts, [0, 1, 2, 3])


def _lstm() -> nn.Module:
    return Staged([Last(nn.LSTM(64, 256, batch_first=True)), nn.Linear(256, 10)], [0, 0])


def _embedding() -> nn.Module:
    bag = nn.Sequential(nn.Embedding(100_000, 64), Mean())
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Staged([bag, head], [0, 1])


def _batch(classes: int, *shape: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda rows: (torch.randn(rows, *shape), torch.randint(classes, (rows,)))


def _tokens(vocabulary: int, length: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda rows: (
        torch.randint(vocabulary, (rows, length)),
        torch.randint(vocabulary, (rows, length)),
    )


def _words(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(100_000, (rows, 16)), torch.randint(10, (rows,))


_ADAMW = partial(torch.optim.AdamW, lr=1e-3)
_SGD = partial(torch.optim.SGD, lr=1e-2)
_MOMENTUM = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)

CASES = {
    "mnist": Case(_mnist, _batch(10, 1, 28, 28), 40, 10, 10, _ADAMW),
    "mlp": Case(_mlp, _batch(8, 32), 8, 8, 16, _SGD),
    "encoder 2x128": Case(partial(_encoder, 128, 2, 2), _batch(10, 64, 128), 4, 8, 1, _ADAMW),
    "encoder 4x512": Case(partial(_encoder, 512, 4, 4, 5000), _tokens(5000, 128), 2, 8, 1, _ADAMW),
    "resnet": Case(_resnet, _batch(10, 3, 32, 32), 8, 8, 1, _MOMENTUM, mixes_rows=True),
    "lstm": Case(_lstm, _batch(10, 64, 64), 16, 1, 8, _ADAMW),
    "embedding": Case(_embedding, _words, 32, 4, 4, _SGD),
    "mnist inference": Case(_mnist, _batch(10, 1, 28, 28), 8, 1, 100, None),
    "encoder 4x256 inference": Case(
        partial(_encoder, 256, 4, 2), _batch(10, 64, 256), 4, 1, 8, None
    ),
}
