"""Language models in the style of BERT, GPT-2 and T5, small; each returns (output, loss)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 30


class Attention(nn.Module):
    """Attention with several heads, written out; `bias` is added to the scores."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, source=None, bias=None):
        source = x if source is None else source
        q, k, v = (
            self._split(self.query(x)),
            self._split(self.key(source)),
            self._split(self.value(source)),
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if bias is not None:
            scores = scores + bias
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Sequential):
    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__(nn.Linear(width, 2 * width), activation, nn.Linear(2 * width, width))


class Bert(nn.Module):
    """Post-norm encoder with padding mask, and a masked-language-model head with tied weights."""

    def __init__(self, width: int = 16, length: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        self.kinds = nn.Embedding(2, width)
        self.register_buffer("places", torch.arange(length)[None])
        self.norm = nn.LayerNorm(width)
        self.attentions = nn.ModuleList(Attention(width, 2) for _ in range(depth))
        self.feeds = nn.ModuleList(FeedForward(width, nn.GELU()) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.decoder = nn.Linear(width, VOCABULARY)
        self.decoder.weight = self.words.weight

    def forward(self, ids, kinds, labels):
        x = self.norm(self.words(ids) + self.positions(self.places) + self.kinds(kinds))
        bias = (ids == 0)[:, None, None].float() * torch.finfo(x.dtype).min
        for index, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = self.norms[2 * index](x + attention(x, bias=bias))
            x = self.norms[2 * index + 1](x + feed(x))
        out = self.decoder(x)
        return out, F.cross_entropy(out.view(-1, VOCABULARY), labels.view(-1), ignore_index=-100)


class Gpt2(nn.Module):
    """Pre-norm decoder with a causal mask; the loss is that of the next word."""

    def __init__(self, width: int = 16, length: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.attentions = nn.ModuleList(Attention(width, 2) for _ in range(depth))
        self.feeds = nn.ModuleList(FeedForward(width, nn.GELU("tanh")) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        length = ids.shape[1]
        places = torch.arange(length, device=ids.device)
        x = self.words(ids) + self.positions(places)
        past = torch.tril(torch.ones(length, length, dtype=torch.bool, device=ids.device))
        bias = torch.zeros(length, length, device=ids.device).masked_fill(~past, float("-inf"))
        for index, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = x + attention(self.norms[2 * index](x), bias=bias)
            x = x + feed(self.norms[2 * index + 1](x))
        out = self.head(self.norms[-1](x))
        return out, F.cross_entropy(out[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class T5(nn.Module):
    """Encoder and decoder with buckets of relative positions and a shared vocabulary."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.relative = nn.Embedding(6, heads)
        self.encoder, self.decoder, self.cross = (Attention(width, heads) for _ in range(3))
        self.encoder_feed, self.decoder_feed = (FeedForward(width, nn.ReLU()) for _ in range(2))
        self.norms = nn.ModuleList(RootMeanSquareNorm(width) for _ in range(7))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids, targets):
        x = self.words(ids)
        x = x + self.encoder(self.norms[0](x), bias=self._bias(ids.shape[1], ids.device))
        source = self.norms[2](x + self.encoder_feed(self.norms[1](x)))
        shifted = targets.new_zeros(targets.shape)
        shifted[:, 1:] = targets[:, :-1].clone()
        y = self.words(shifted)
        length = targets.shape[1]
        future = torch.full((length, length), -1e9, device=ids.device).triu(1)
        y = y + self.decoder(self.norms[3](y), bias=self._bias(length, ids.device) + future)
        y = y + self.cross(self.norms[4](y), source)
        y = y + self.decoder_feed(self.norms[5](y))
        out = self.head(self.norms[6](y))
        return out, F.cross_entropy(out.flatten(0, 1), targets.flatten())

    def _bias(self, length: int, device: torch.device) -> torch.Tensor:
        places = torch.arange(length, device=device)
        distance = (places[None] - places[:, None]).abs()
        bucket = torch.where(distance < 4, distance, 4 + (distance > 6).long())
        return self.relative(bucket).permute(2, 0, 1)[None]
