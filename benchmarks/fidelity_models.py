"""The models behind published memory figures; `fidelity_rows.py` has their settings.

If a Transformer recomputes, it keeps the output of each layer (published for C17 and C27).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from models import Bottleneck, ResNet50Like
from torch import nn

import poptorch_emu as poptorch

SERIAL = poptorch.MatMulSerializationMode.OutputChannels
# A score that hides a word from the softmax without being infinite in float16.
HIDDEN = -1e4


@dataclass(frozen=True)
class Shape:
    """Sizes of a Transformer.

    Attributes:
        layers: number of layers on each IPU.
        marks_last: whether the last layer's output is also a checkpoint of the recomputation.
    """

    width: int
    heads: int
    length: int
    layers: tuple[int, ...]
    is_causal: bool = False
    has_norm_first: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    marks_last: bool = True


class Attention(nn.Module):
    """Self-attention; `bias` is added to the scores, or is a boolean mask of the scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inputs = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.drop = nn.Dropout(shape.attention_dropout)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, length, width = x.shape
        heads = self.inputs(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if bias is not None and bias.dtype is torch.bool:
            scores = torch.where(bias, scores, HIDDEN)
        elif bias is not None:
            scores = scores + bias
        mixed = self.drop(torch.softmax(scores, dim=-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention and a feed-forward net, each with a residual connection and a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.has_norm_first = shape.has_norm_first
        self.attention = Attention(shape)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.has_norm_first:
            x = x + self.drop(self.attention(self.norm1(x), bias))
            return x + self.drop(self.feed(self.norm2(x)))
        x = self.norm1(x + self.drop(self.attention(x, bias)))
        return self.norm2(x + self.drop(self.feed(x)))


class Encoder(nn.Module):
    """A stack of layers over the IPUs, with a recomputation checkpoint after each layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_causal, self.marks_last = shape.is_causal, shape.marks_last
        self.ipus = [ipu for ipu, count in enumerate(shape.layers) for _ in range(count)]
        self.layers = nn.ModuleList(Layer(shape) for _ in self.ipus)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        for index, (ipu, layer) in enumerate(zip(self.ipus, self.layers, strict=True)):
            with poptorch.Block(f"layer{index}", ipu_id=ipu):
                if self.is_causal and self.ipus.index(ipu) == index:
                    size = (x.shape[1], x.shape[1])
                    bias = torch.ones(size, dtype=torch.bool, device=x.device).tril()
                x = layer(x, bias)
                if self.marks_last or index + 1 < len(self.layers):
                    x = poptorch.recomputationCheckpoint(x)
        return x


class Bert(nn.Module):
    """Embeddings of words, positions and segment kinds, and the encoder."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, shape.width)
        self.places = nn.Parameter(torch.zeros(512, shape.width))
        self.kinds = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.drop = nn.Dropout(shape.dropout)
        self.encoder = Encoder(shape)

    def encode(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("embedding", ipu_id=0):
            x = self.words(ids) + self.places[: ids.shape[1]] + self.kinds(kinds)
            x = poptorch.recomputationCheckpoint(self.drop(self.norm(x)))
            bias = (1 - mask[:, None, None].to(x.dtype)) * HIDDEN
        return self.encoder(x, bias)


class BertPretraining(Bert):
    """Predicts masked words, with the word table in `parts`, and the next sentence."""

    def __init__(self, shape: Shape, vocabulary: int, parts: int) -> None:
        super().__init__(shape, vocabulary)
        width = shape.width
        self.parts = parts
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.word_bias = nn.Parameter(torch.zeros(vocabulary))
        self.pool = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, ids, kinds, mask, hidden, words, follows):
        x = self.encode(ids, kinds, mask)
        with poptorch.Block("heads", ipu_id=0):
            chosen = x.gather(1, hidden[..., None].expand(-1, -1, x.shape[-1]))
            table = self.words.weight.t()
            logits = poptorch.serializedMatMul(self.transform(chosen), table, SERIAL, self.parts)
            logits = (logits + self.word_bias).flatten(0, 1)
            next_loss = F.cross_entropy(self.pool(x[:, 0]), follows)
            loss = F.cross_entropy(logits, words.flatten()) + next_loss
            return poptorch.identity_loss(loss, "none")


class BertAnswers(Bert):
    """Predicts the first and last word of an answer."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__(shape, vocabulary)
        self.head = nn.Linear(shape.width, 2)

    def forward(self, ids, kinds, mask, first, last):
        x = self.encode(ids, kinds, mask)
        with poptorch.Block("head", ipu_id=self.encoder.ipus[-1]):
            starts, ends = self.head(x).unbind(-1)
            loss = F.cross_entropy(starts, first) + F.cross_entropy(ends, last)
            return poptorch.identity_loss(loss / 2, "none")


class Gpt(nn.Module):
    """Decoder whose head reuses its word table, on the IPU of the table.

    The head processes the sequence in `pieces`, and for each piece the table in `parts`.
    """

    def __init__(self, shape: Shape, vocabulary: int, pieces: int = 1, parts: int = 1) -> None:
        super().__init__()
        self.pieces, self.parts = pieces, parts
        self.words = nn.Embedding(vocabulary, shape.width)
        self.places = nn.Parameter(torch.zeros(shape.length, shape.width))
        self.encoder = Encoder(shape)
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, ids, labels):
        with poptorch.Block("embedding", ipu_id=0):
            x = poptorch.recomputationCheckpoint(self.words(ids) + self.places)
        x = self.encoder(x)
        with poptorch.Block("head", ipu_id=0):
            pieces = zip(x.chunk(self.pieces, 1), labels.chunk(self.pieces, 1), strict=True)
            losses = [
                F.cross_entropy(self._logits(piece), label.flatten()) for piece, label in pieces
            ]
            return poptorch.identity_loss(torch.stack(losses), "mean")

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        table = self.words.weight.t()
        return poptorch.serializedMatMul(self.norm(x), table, SERIAL, self.parts).flatten(0, 1)


class Vit(nn.Module):
    """Encoder of image patches with a classifier; labels may be class probabilities."""

    def __init__(self, shape: Shape, num_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.width, 16, stride=16)
        self.summary = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.places = nn.Parameter(torch.zeros(shape.length, shape.width))
        self.drop = nn.Dropout(shape.dropout)
        self.encoder = Encoder(shape)
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, num_classes)

    def forward(self, images, labels):
        with poptorch.Block("embedding", ipu_id=0):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.summary.expand(len(x), -1, -1), x], 1) + self.places
            x = poptorch.recomputationCheckpoint(self.drop(x))
        x = self.encoder(x)
        with poptorch.Block("head", ipu_id=self.encoder.ipus[-1]):
            loss = F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)
            return poptorch.identity_loss(loss, "none")


class ResNet50(ResNet50Like):
    """ResNet-50 that normalises its 8-bit images itself; with labels it returns the loss."""

    def forward(self, images, labels=None):
        x = (images.half() - 118.0) / 58.0
        for layer in self.body:
            x = layer(x)
            if isinstance(layer, Bottleneck | nn.MaxPool2d):
                x = poptorch.recomputationCheckpoint(x)
        return x if labels is None else F.cross_entropy(x, labels)


class Scored(nn.Module):
    """A classifier that returns the loss if labels are given."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x, labels=None):
        out = self.body(x)
        return out if labels is None else F.cross_entropy(out, labels)


class Recurrent(nn.Module):
    """Recurrent layers, each with dropout, and a classifier of the last step."""

    def __init__(self, kind: type[nn.RNN] | type[nn.GRU], widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            kind(size, width, batch_first=True)
            for size, width in zip((16, *widths), widths, strict=False)
        )
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(widths[-1], 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(layer(x)[0])
        return self.head(x[:, -1])
