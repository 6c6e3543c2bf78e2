"""Networks behind published speeds for images, speech and entities."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from fidelity_models import Layer, Shape
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.companions.poptorch_experimental_addons import collectives

_GROUP_WIDTH = 16
# Channels, repetitions, stride and kernel of the stages of EfficientNet-B0.
_STAGES = (
    (16, 1, 1, 3), (24, 2, 2, 3), (40, 2, 2, 5), (80, 3, 2, 3), (112, 3, 1, 5), (192, 4, 2, 5),
    (320, 1, 1, 3),
)  # fmt: skip


def _rounded(channels: float) -> int:
    return 8 * round(channels / 8)


class _Inverted(nn.Module):
    """Widens, convolves in groups, weights channels and narrows, with a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int, kernel: int, factor: int) -> None:
        super().__init__()
        width = inputs * factor
        self.is_residual = stride == 1 and inputs == outputs
        widen = [] if factor == 1 else _normed(inputs, width, 1)
        grouped = _normed(width, width, kernel, stride, groups=width // _GROUP_WIDTH)
        self.body = nn.Sequential(*widen, *grouped)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inputs // 4, 1), nn.SiLU(),
            nn.Conv2d(inputs // 4, width, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.narrow = nn.Sequential(*_normed(width, outputs, 1)[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.body(x)
        out = self.narrow(wide * self.weigh(wide))
        return x + out if self.is_residual else out


def _normed(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.GroupNorm(4, outputs), nn.SiLU()]


class EfficientNetB4(nn.Module):
    """EfficientNet-B4 with groups of 16 channels, group norm and an expansion of 4, on two IPUs."""

    def __init__(self, first_on_second_ipu: int) -> None:
        super().__init__()
        self.first_on_second_ipu = first_on_second_ipu
        inputs = _rounded(32 * 1.4)
        blocks: list[nn.Module] = [nn.Sequential(*_normed(3, inputs, 3, 2))]
        for stage, (channels, repetitions, stride, kernel) in enumerate(_STAGES):
            outputs = _rounded(channels * 1.4)
            for index in range(math.ceil(repetitions * 1.8)):
                factor = 1 if stage == 0 else 4
                blocks.append(
                    _Inverted(inputs, outputs, stride if index == 0 else 1, kernel, factor)
                )
                inputs = outputs
        last = _rounded(1280 * 1.4)
        head = [*_normed(inputs, last, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        blocks.append(nn.Sequential(*head, nn.Linear(last, 1000)))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, images: torch.Tensor, labels: torch.Tensor):
        x = (images.half() - 118.0) / 58.0
        for index, block in enumerate(self.blocks):
            with poptorch.Block(f"block{index}", ipu_id=int(index >= self.first_on_second_ipu)):
                x = block(x)
                if index + 1 < len(self.blocks):
                    x = poptorch.recomputationCheckpoint(x)
                    continue
                return poptorch.identity_loss(F.cross_entropy(x, labels), "none")
        raise AssertionError("the last block returns")


class _RelativeAttention(nn.Module):
    """Attention whose scores also depend on the distance of two frames, as in Transformer-XL."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.of_distance = nn.Linear(width, width, bias=False)
        self.biases = nn.Parameter(torch.zeros(2, heads, 1, width // heads))
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        heads = self.inputs(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        far = self.of_distance(distances).view(-1, self.heads, width // self.heads).transpose(0, 1)
        for_content, for_distance = self.biases.unbind(0)
        scores = (q + for_content) @ k.transpose(-1, -2)
        by_distance = (q + for_distance) @ far.transpose(-1, -2)
        scores = (scores + _shifted(by_distance)) / math.sqrt(width // self.heads)
        mixed = self.drop(torch.softmax(scores, dim=-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def _shifted(scores: torch.Tensor) -> torch.Tensor:
    """Returns scores by frame instead of by distance; each row moves by one place more."""
    *outer, length, width = scores.shape
    padded = F.pad(scores, (1, 0)).view(*outer, width + 1, length)
    return padded[..., 1:, :].reshape(scores.shape)[..., :length]


class _ConformerLayer(nn.Module):
    """Half a feed-forward net, attention, a convolution over time, and the other half.

    Source: the paper on Conformer, which also has the relative attention and the dropout.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.feeds = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2048), nn.SiLU(), nn.Linear(2048, width)
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = _RelativeAttention(width, heads)
        self.widen = nn.Conv1d(width, 2 * width, 1)
        self.over_time = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.norm_of_channels = nn.GroupNorm(1, width)
        self.narrow = nn.Conv1d(width, width, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.drop(self.feeds[0](x))
        x = x + self.drop(self.attention(self.norms[0](x), distances))
        wide = F.glu(self.widen(self.norms[1](x).transpose(1, 2)), dim=1)
        mixed = self.narrow(F.silu(self.norm_of_channels(self.over_time(wide))))
        x = x + self.drop(mixed.transpose(1, 2))
        return self.norms[2](x + 0.5 * self.drop(self.feeds[1](x)))


class Conformer(nn.Module):
    """The encoder of 12 blocks for features (rows, frames, 80), on several IPUs."""

    def __init__(self, frames: int, num_ipus: int) -> None:
        super().__init__()
        self.num_ipus = num_ipus
        self.sample = nn.Sequential(
            nn.Conv2d(1, 256, 3, 2), nn.ReLU(), nn.Conv2d(256, 256, 3, 2), nn.ReLU()
        )
        self.project = nn.Linear(256 * 19, 256)
        length = ((frames - 1) // 2 - 1) // 2
        self.distances = nn.Buffer(torch.zeros(2 * length - 1, 256))
        self.layers = nn.ModuleList(_ConformerLayer(256, 4) for _ in range(12))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("sample", ipu_id=0):
            sampled = self.sample(features[:, None])
            x = self.project(sampled.transpose(1, 2).flatten(2))
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index * self.num_ipus // len(self.layers)):
                x = poptorch.recomputationCheckpoint(layer(x, self.distances))
        return x


class _DecoderLayer(Layer):
    """A layer that also attends to the encoder's output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.queries = nn.Linear(shape.width, shape.width)
        self.heard = nn.Linear(shape.width, 2 * shape.width)
        self.norm3 = nn.LayerNorm(shape.width)

    def hear(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        queries = self.queries(x).view(rows, length, 4, width // 4).transpose(1, 2)
        keys, values = (
            part.view(rows, -1, 4, width // 4).transpose(1, 2)
            for part in self.heard(memory).chunk(2, -1)
        )
        scores = torch.softmax(queries @ keys.transpose(-1, -2) / math.sqrt(width // 4), -1)
        return self.norm3(x + (scores @ values).transpose(1, 2).reshape(x.shape))


class Speech(nn.Module):
    """Conformer with a decoder of 6 blocks that predicts characters, and a CTC loss.

    Encoder and decoder each predict the characters (assumed weights of both losses: 0.3, 0.7).
    """

    def __init__(self, frames: int = 1220, length: int = 48, num_ipus: int = 4) -> None:
        super().__init__()
        self.last = num_ipus - 1
        self.encoder = Conformer(frames, num_ipus)
        self.table = nn.Embedding(4233, 256)
        shape = Shape(256, 4, length, (6,))
        self.layers = nn.ModuleList(_DecoderLayer(shape) for _ in range(6))
        self.head = nn.Linear(256, 4233)
        self.head_of_encoder = nn.Linear(256, 4233)

    def forward(self, features: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        memory = self.encoder(features)
        with poptorch.Block("decoder", ipu_id=self.last):
            x = self.table(text)
            for layer in self.layers:
                x = poptorch.recomputationCheckpoint(layer.hear(layer(x, None), memory))
            loss = F.cross_entropy(self.head(x).flatten(0, 1), text.flatten())
            return poptorch.identity_loss(0.7 * loss + 0.3 * self._ctc(memory, text), "none")

    def _ctc(self, memory: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """Returns the CTC loss, over whole sequences."""
        rows, frames, _ = memory.shape
        scores = self.head_of_encoder(memory).transpose(0, 1)
        scores = F.log_softmax(scores, -1, dtype=torch.float)
        return F.ctc_loss(scores, text, (frames,) * rows, (text.shape[1],) * rows)


class Entities(nn.Module):
    """Shards of a knowledge graph, one on each replica, scored by distances of rotated entities.

    Each row has one negative from each shard; shards exchange the entities that they look up.
    """

    def __init__(self, num_entities: int, width: int, num_shards: int) -> None:
        super().__init__()
        self.num_shards = num_shards
        self.table = nn.Parameter(torch.zeros(num_shards, num_entities // num_shards, 2 * width))
        self.relations = nn.Embedding(51, width)

    def forward(self, heads: torch.Tensor, relations: torch.Tensor, tails: torch.Tensor):
        real, imaginary = F.embedding(heads, self.table).chunk(2, -1)
        angle = self.relations(relations)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        turned = torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1)
        others = F.embedding(tails, self.table)
        others = collectives.all_to_all_single_cross_replica(others, self.num_shards)
        distance = (turned[:, None] - others).abs().sum(-1)
        scores = F.logsigmoid(6.0 - distance[:, 0]) + F.logsigmoid(distance[:, 1:] - 6.0).mean(-1)
        return poptorch.identity_loss(-scores, "mean")


class Clip(nn.Module):
    """An encoder of 49 image patches, an encoder of 77 words, and the similarity of each pair."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 32, 32)
        image, text = Shape(768, 12, 49, (12,), False, True), Shape(512, 8, 77, (12,), True, True)
        self.images = nn.ModuleList(Layer(image) for _ in range(12))
        self.table = nn.Embedding(49_408, 512)
        self.words = nn.ModuleList(Layer(text) for _ in range(12))
        self.of_image, self.of_text = nn.Linear(768, 512), nn.Linear(512, 512)

    def forward(self, images: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        image = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.images:
            image = layer(image, None)
        words = self.table(text)
        earlier = torch.ones((77, 77), dtype=torch.bool, device=words.device).tril()
        for layer in self.words:
            words = layer(words, earlier)
        return self.of_image(image[:, 0]) @ self.of_text(words[:, -1]).t()
