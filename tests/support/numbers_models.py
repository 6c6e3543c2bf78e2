"""A small model with a place for each of many mistakes, and for changes that do no harm."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import poptorch_emu as poptorch

WIDTH, HEADS, LENGTH, WORDS, CLASSES = 16, 2, 6, 11, 5


class Norm(torch.nn.Module):
    """Layer norm, written out or not."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.weight = torch.nn.Parameter(1.0 + 0.1 * torch.arange(WIDTH) / WIDTH)
        self.bias = torch.nn.Parameter(0.05 * torch.arange(WIDTH) / WIDTH)

    def forward(self, x):
        change = self.change
        if change == "norm written out":
            x = x - x.mean(-1, keepdim=True)
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight + (
                self.bias
            )
        weight, bias = self.weight, self.bias
        if change == "norm without bias":
            bias = None
        if change == "norm without weight":
            weight = None
        if change == "norm of another weight":
            weight = self.weight.flip(0)
        if change == "RMS norm":
            return F.rms_norm(x, (WIDTH,), weight, 1e-5) + bias
        eps = {"wrong eps": 1e-3, "no eps": 0.0}.get(change, 1e-5)
        return F.layer_norm(x, (WIDTH,), weight, bias, eps)


class Attention(torch.nn.Module):
    """Self-attention with a mask of what comes later."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        change, rows = self.change, x.size(0)
        q, k, v = self.qkv(x).view(rows, LENGTH, 3, HEADS, WIDTH // HEADS).unbind(2)
        if change == "query and key swapped":
            q, k = k, q
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scale = 1.0 / math.sqrt(WIDTH // HEADS)
        if change == "scale of the whole width":
            scale = 1.0 / math.sqrt(WIDTH)
        if change == "scale put on the query":
            q, scale = q * scale, 1.0
        if change == "fused attention":
            mask = torch.ones(LENGTH, LENGTH).tril().bool()
            y = F.scaled_dot_product_attention(q, k, v, mask)
            return self.out(y.transpose(1, 2).reshape(rows, LENGTH, WIDTH))
        scores = q @ k.transpose(-1, -2)
        if change != "scale left out" and change != "scale put on the query":
            scores = scores * scale
        diagonal = {"mask shifted": 2, "mask hides itself": 0}.get(change, 1)
        mask = torch.ones(LENGTH, LENGTH).triu(diagonal).bool()
        if change == "mask transposed":
            mask = mask.t()
        fill = {"mask of zeros": 0.0, "mask adds little": -2.0}.get(change, -1e4)
        if change != "mask left out":
            scores = scores.masked_fill(mask, fill)
        if change == "mask added":
            scores = q @ k.transpose(-1, -2) * scale + mask.float() * -1e4
        axis = -2 if change == "softmax over the wrong axis" else -1
        if change == "softmax written out":
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights = scores.softmax(axis)
        if change == "products by einsum":
            y = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        else:
            y = weights @ v
        if change == "heads not moved back":
            return self.out(y.reshape(rows, LENGTH, WIDTH))
        return self.out(y.transpose(1, 2).reshape(rows, LENGTH, WIDTH))


class Mlp(torch.nn.Module):
    """Two layers."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.square = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        change = self.change
        if change == "weight transposed":
            x = F.linear(x, self.square.weight.t(), self.square.bias)
        elif change == "bias left out":
            x = x @ self.square.weight.t()
        elif change == "product and sum apart":
            x = x @ self.square.weight.t() + self.square.bias
        elif change == "transposed product":
            x = (self.square.weight @ x.transpose(-1, -2)).transpose(-1, -2) + self.square.bias
        elif change == "sum in halves":
            half, weight = WIDTH // 2, self.square.weight
            x = x[..., :half] @ weight[:, :half].t() + x[..., half:] @ weight[:, half:].t()
            x = x + self.square.bias
        else:
            x = self.square(x)
        y = self.up(x)
        if change == "another activation":
            y = F.relu(y)
        elif change == "activation left out":
            y = y.clone()
        elif change == "tanh instead of erf":
            y = F.gelu(y, approximate="tanh")
        else:
            y = F.gelu(y)
        if change == "negated":
            y = -y
        if change == "gradient stopped":
            y = y.detach()
        y = self.down(y)
        if change == "dropped rows":
            y = torch.cat([y[:, :-1], torch.zeros_like(y[:, -1:])], 1)
        return y


class Language(torch.nn.Module):
    """Embedding, a block of a transformer, a classifier and its loss.

    Args:
        change: a mistake or a harmless change; "" for neither.
        num_ipus: over which it is spread.
    """

    def __init__(self, change: str = "", num_ipus: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change, self.last = change, num_ipus - 1
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.3)
        self.attention, self.mlp = Attention(change), Mlp(change)
        self.norm = Norm(change)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, words, target):
        change = self.change
        with poptorch.Block("begin", ipu_id=0):
            x = self.words(words)
            if change == "places left out":
                pass
            elif change == "places shifted":
                x = x + self.places.roll(1, 0)
            elif change == "places first":
                x = self.places + x
            else:
                x = x + self.places
            y = self.attention(x)
            x = (
                y
                if change == "residual left out"
                else y + y
                if change == "wrong residual"
                else x + y
            )
        with poptorch.Block("end", ipu_id=self.last):
            x = x + self.mlp(self.norm(x))
            axis = 2 if change == "mean over the wrong axis" else 1
            if change == "maximum instead of mean":
                pooled = x.amax(1)
            elif change == "sum instead of mean":
                pooled = x.sum(1)
            elif change == "mean by sum":
                pooled = x.sum(1) * (1.0 / LENGTH)
            elif axis == 2:
                pooled = x.mean(2).repeat(1, 3)[:, :WIDTH]
            else:
                pooled = x.mean(1)
            logits = self.head(pooled)
            return logits, self.loss(logits * 2 if change == "logits twice" else logits, target)

    def loss(self, logits, target):
        """Returns the loss, with a change of it."""
        change = self.change
        if change == "smoothed labels":
            return F.cross_entropy(logits, target, label_smoothing=0.1)
        if change == "sum of the losses":
            return F.cross_entropy(logits, target, reduction="sum")
        if change == "loss by parts":
            return F.nll_loss(F.log_softmax(logits, -1), target)
        if change == "wrong target":
            target = target.roll(1, 0)
        return F.cross_entropy(logits, target)


# Mistakes in the model, with the module in which each one is and the direction where it shows.
MISTAKES = {
    "wrong eps": "norm", "no eps": "norm", "norm without bias": "norm",
    "norm without weight": "norm", "norm of another weight": "norm", "RMS norm": "norm",
    "query and key swapped": "attention", "scale of the whole width": "attention",
    "scale left out": "attention", "mask shifted": "attention", "mask hides itself": "attention",
    "mask transposed": "attention", "mask of zeros": "attention", "mask adds little": "attention",
    "mask left out": "attention", "softmax over the wrong axis": "attention",
    "heads not moved back": "attention",
    "weight transposed": "mlp", "bias left out": "mlp", "another activation": "mlp",
    "activation left out": "mlp", "tanh instead of erf": "mlp", "negated": "mlp",
    "gradient stopped": "mlp", "dropped rows": "mlp",
    "places left out": "", "places shifted": "", "residual left out": "", "wrong residual": "",
    "mean over the wrong axis": "", "maximum instead of mean": "", "sum instead of mean": "",
    "logits twice": "", "smoothed labels": "", "sum of the losses": "", "wrong target": "",
}  # fmt: skip

# Changes of the order of sums and of the operations that make them.
HARMLESS = (
    "norm written out", "scale put on the query", "fused attention", "mask added",
    "softmax written out", "products by einsum", "product and sum apart", "transposed product",
    "sum in halves", "places first", "mean by sum", "loss by parts",
)  # fmt: skip


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns words and targets."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (rows, LENGTH), generator=generator)
    return words, torch.randint(CLASSES, (rows,), generator=generator)
