"""Small convolutional models and a vision transformer in the style of torchvision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    """Runs `body` and compares its result with the labels; returns (output, loss)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        out = self.body(x)
        return out, F.cross_entropy(out, labels)


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
    """Returns a convolution and a batch norm, without activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """`way` and a short cut, which is a projection if the shape changes."""

    def __init__(self, way: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.way, self.shortcut = way, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.way(x)
        y += self.shortcut(x)
        return F.relu_(y)


def basic_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    way = nn.Sequential(
        conv_norm(inputs, outputs, 3, stride), nn.ReLU(inplace=True), conv_norm(outputs, outputs, 3)
    )
    return Residual(way, _shortcut(inputs, outputs, stride))


def bottleneck(inputs: int, outputs: int, stride: int) -> nn.Module:
    middle = outputs // 4
    way = nn.Sequential(
        conv_norm(inputs, middle, 1),
        nn.ReLU(inplace=True),
        conv_norm(middle, middle, 3, stride),
        nn.ReLU(inplace=True),
        conv_norm(middle, outputs, 1),
    )
    return Residual(way, _shortcut(inputs, outputs, stride))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return conv_norm(inputs, outputs, 1, stride)


def resnet(block, depths: tuple[int, ...], widths: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = [
        conv_norm(3, widths[0], 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = widths[0]
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for index in range(depth):
            layers.append(block(inputs, width, 2 if stage and index == 0 else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, reduced, 1)
        self.up = nn.Conv2d(reduced, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(F.silu(self.down(scale))))


class InvertedResidual(nn.Module):
    """Widens, filters each channel, and narrows; with a residual connection if shapes match."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation, excites: bool) -> None:
        super().__init__()
        wide = inputs * 3
        self.is_residual = stride == 1 and inputs == outputs
        self.way = nn.Sequential(
            conv_norm(inputs, wide, 1),
            activation(),
            conv_norm(wide, wide, 3, stride, groups=wide),
            activation(),
            SqueezeExcite(wide, 4) if excites else nn.Identity(),
            conv_norm(wide, outputs, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.way(x) if self.is_residual else self.way(x)


def mobile_net(activation=nn.ReLU6, excites: bool = False, classes: int = 5) -> nn.Module:
    shapes = [(8, 8, 1), (8, 12, 2), (12, 12, 1), (12, 16, 2)]
    blocks = [InvertedResidual(*shape, activation, excites) for shape in shapes]
    return nn.Sequential(
        conv_norm(3, 8, 3, 2),
        activation(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


def efficient_net() -> nn.Module:
    return mobile_net(nn.SiLU, excites=True)


class VisionTransformer(nn.Module):
    """A vision transformer: patches, a class token, positions, encoder layers."""

    def __init__(self, side: int = 16, patch: int = 4, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])
