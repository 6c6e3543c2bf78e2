"""Parts of random image models that change or read the memory order of images.

Each part maps images (N, 8, 6, 6) in any memory order to images of the same shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

CHANNELS, SIDE = 8, 6
Images = torch.Tensor


class Part(nn.Module):
    """Applies a function to images and trained layers."""

    def __init__(self, function: Callable[..., Images], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._function = function

    def forward(self, x: Images) -> Images:
        return self._function(x, *self.layers)


def _last(x: Images, layer: nn.Module) -> Images:
    """Applies a layer to channels in the last dimension, as vision transformers do."""
    return layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _heads(x: Images, projection: nn.Module) -> Images:
    """Computes attention between the pixels of an image, with four channels in each head."""
    tokens = projection(x.flatten(2).transpose(1, 2))
    parts = [each.unflatten(-1, (2, 4)).transpose(1, 2) for each in tokens.chunk(3, -1)]
    found = F.scaled_dot_product_attention(*parts)
    return found.transpose(1, 2).flatten(2).transpose(1, 2).reshape(x.shape)


def _unpooled(x: Images) -> Images:
    values, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(values, places, 2)


def _weight_last(x: Images, conv: nn.Module) -> Images:
    return F.conv2d(x, conv.weight.contiguous(memory_format=torch.channels_last), padding=1)


def _masked(x: Images) -> Images:
    y = (x * 2).permute(0, 2, 3, 1)
    y.masked_fill_(y > 2, 0.5)
    return y.permute(0, 3, 1, 2)


def _scaled(x: Images) -> Images:
    y = (x + 0.5).transpose(1, 2)
    y[:, 1:4].mul_(2.0)
    return y.transpose(1, 2)


def _rotated(x: Images) -> Images:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], SIDE // 2, 2).contiguous())
    return torch.view_as_real(pairs).flatten(-2)


def _asked(x: Images) -> Images:
    """Computes a result that depends on the memory order, which Python code queries."""
    if x.is_contiguous():
        return x * 0.5
    return x + 0.1 * x.stride(1)


def _in_memory(x: Images) -> Images:
    """Reads the elements in memory order."""
    return x.as_strided((len(x), CHANNELS, SIDE, SIDE), (CHANNELS * SIDE**2, SIDE**2, SIDE, 1))


def _conv(**how: int) -> Part:
    return Part(lambda x, conv: conv(x), nn.Conv2d(CHANNELS, CHANNELS, **how))


def _simple(function: Callable[[Images], Images]) -> Callable[[random.Random], Part]:
    return lambda _: Part(function)


def _layer(make: Callable[[], nn.Module]) -> Callable[[random.Random], Part]:
    return lambda _: Part(lambda x, layer: layer(x), make())


def _upscaled(x: Images, mode: str) -> Images:
    return F.avg_pool2d(F.interpolate(x, scale_factor=2, mode=mode), 2)


def _indexed(choice: random.Random) -> Part:
    order = torch.tensor(choice.sample(range(CHANNELS), CHANNELS))
    return Part(lambda x: x[:, order.to(x.device)])


def _softmax(choice: random.Random) -> Part:
    dim = choice.randrange(1, 4)
    return Part(lambda x: x.softmax(dim))


PARTS: dict[str, Callable[[random.Random], Part]] = {
    "linear": lambda _: Part(_last, nn.Linear(CHANNELS, CHANNELS)),
    "layer norm": lambda _: Part(_last, nn.LayerNorm(CHANNELS)),
    "conv 1": lambda _: _conv(kernel_size=1),
    "conv 3": lambda _: _conv(kernel_size=3, padding=1),
    "grouped": lambda _: _conv(kernel_size=3, padding=1, groups=2),
    "depthwise": lambda _: _conv(kernel_size=3, padding=1, groups=CHANNELS, bias=False),
    "dilated": lambda _: _conv(kernel_size=3, padding=2, dilation=2),
    "transposed": _layer(lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1)),
    "grouped transposed": _layer(
        lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1, groups=2)
    ),
    "weight last": lambda _: Part(_weight_last, nn.Conv2d(CHANNELS, CHANNELS, 3, bias=False)),
    "conv of rows": lambda _: Part(
        lambda x, conv: conv(x.flatten(2)).view(x.shape),
        nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1),
    ),
    "conv of permuted rows": lambda _: Part(
        lambda x, conv: conv(x.reshape(len(x), -1, CHANNELS).transpose(1, 2)).reshape(x.shape),
        nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1),
    ),
    "conv of volumes": lambda _: Part(
        lambda x, conv: conv(x.unflatten(1, (2, 4)).transpose(1, 2)).flatten(1, 2),
        nn.Conv3d(4, 4, 3, padding=1),
    ),
    "group norm": _layer(lambda: nn.GroupNorm(2, CHANNELS)),
    "group norm of rows": lambda _: Part(
        lambda x, norm: norm(x.flatten(2)).unflatten(2, (SIDE, SIDE)), nn.GroupNorm(2, CHANNELS)
    ),
    "batch norm": _layer(lambda: nn.BatchNorm2d(CHANNELS)),
    "instance norm": _layer(lambda: nn.InstanceNorm2d(CHANNELS, affine=True)),
    "attention": lambda _: Part(_heads, nn.Linear(CHANNELS, 3 * CHANNELS)),
    "attention of images": _simple(lambda x: F.scaled_dot_product_attention(x, x, x)),
    "average": _simple(lambda x: F.avg_pool2d(x, 3, 1, 1)),
    "maximum": _simple(lambda x: F.max_pool2d(x, 3, 1, 1)),
    "unpooled": _simple(_unpooled),
    "nearest": _simple(lambda x: _upscaled(x, "nearest")),
    "bilinear": _simple(lambda x: _upscaled(x, "bilinear")),
    "pixels": _simple(lambda x: F.pixel_shuffle(F.pixel_unshuffle(x, 2).roll(1, 1), 2)),
    "channels": _simple(lambda x: F.channel_shuffle(x, 2)),
    "roll": _simple(lambda x: x.roll((1, 2), (2, 3))),
    "flip": _simple(lambda x: x.flip(3)),
    "turned": _simple(lambda x: x.transpose(2, 3)),
    "contiguous": _simple(lambda x: x.contiguous()),
    "viewed": _simple(lambda x: x.contiguous().view(len(x), -1).mul(1.5).view(x.shape)),
    "channels last": _simple(lambda x: x.contiguous(memory_format=torch.channels_last)),
    "padded": _simple(lambda x: F.pad(x, (1, 1, 1, 1), "reflect")[:, :, 1:-1, 1:-1]),
    "chunks": _simple(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1)),
    "stacked": _simple(lambda x: torch.stack(x.unbind(1)[::-1], 1)),
    "indexed": _indexed,
    "softmax": _softmax,
    "masked": _simple(_masked),
    "scaled": _simple(_scaled),
    "rotated": _simple(_rotated),
    "asked": _simple(_asked),
    "in memory": _simple(_in_memory),
    "gelu": _simple(F.gelu),
    "gated": _simple(lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True))),
    "product": _simple(lambda x: x @ x.transpose(2, 3) * 0.1),
}
