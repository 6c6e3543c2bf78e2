"""A small model with places for many mistakes, and for harmless changes.

Each of its steps is a table from the name of a change to a function; "" is the correct step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import poptorch_emu as poptorch

WIDTH, HEADS, LENGTH, WORDS, CLASSES = 16, 2, 6, 11, 5
DEPTH = WIDTH // HEADS
SCALE = 1.0 / math.sqrt(DEPTH)


def step(table, change):
    """Returns the step for a change; the correct one if the change concerns another step."""
    return table.get(change, table[""])


def layer_norm(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, (WIDTH,), weight, bias, eps)


def norm_written_out(x, weight, bias):
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight + bias


def norm_by_moments(x, weight, bias):
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias


def norm_of_groups(x, weight, bias):
    rows = x.reshape(-1, WIDTH)
    return F.group_norm(rows, 1, weight, bias, 1e-5).view(x.shape)


NORMS = {
    "": layer_norm,
    "wrong eps": lambda x, w, b: layer_norm(x, w, b, 1e-3),
    "no eps": lambda x, w, b: layer_norm(x, w, b, 0.0),
    "norm without bias": lambda x, w, b: layer_norm(x, w, None),
    "norm without weight": lambda x, w, b: layer_norm(x, None, b),
    "norm of another weight": lambda x, w, b: layer_norm(x, w.flip(0), b),
    "RMS norm": lambda x, w, b: F.rms_norm(x, (WIDTH,), w, 1e-5) + b,
    "norm written out": norm_written_out,
    "norm by moments": norm_by_moments,
    "norm of groups": norm_of_groups,
    "norm, then its weights": lambda x, w, b: layer_norm(x, None, None) * w + b,
    "norm of all rows": lambda x, w, b: layer_norm(x.flatten(0, 1), w, b).view(x.shape),
}


class Norm(torch.nn.Module):
    """Layer norm."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.weight = torch.nn.Parameter(1.0 + 0.1 * torch.arange(WIDTH) / WIDTH)
        self.bias = torch.nn.Parameter(0.05 * torch.arange(WIDTH) / WIDTH)

    def forward(self, x):
        return step(NORMS, self.change)(x, self.weight, self.bias)


def parts_apart(linear, x):
    parts = zip(linear.weight.chunk(3), linear.bias.chunk(3), strict=True)
    return torch.cat([F.linear(x, weight, bias) for weight, bias in parts], -1)


PROJECTIONS = {
    "": lambda linear, x: linear(x),
    "query, key and value apart": parts_apart,
    "projection by einsum": lambda linear, x: (
        torch.einsum("blw,ow->blo", x, linear.weight) + linear.bias
    ),
}


def scores_by_bmm(q, k):
    shape = q.shape[:2]
    products = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(-1, -2))
    return products.unflatten(0, shape) * SCALE


SCORES = {
    "": lambda q, k: q @ k.transpose(-1, -2) * SCALE,
    "query and key swapped": lambda q, k: k @ q.transpose(-1, -2) * SCALE,
    "scale of the whole width": lambda q, k: q @ k.transpose(-1, -2) / math.sqrt(WIDTH),
    "scale left out": lambda q, k: q @ k.transpose(-1, -2),
    "scale put on the query": lambda q, k: (q * SCALE) @ k.transpose(-1, -2),
    "scale by division": lambda q, k: q @ k.transpose(-1, -2) / math.sqrt(DEPTH),
    "scores by einsum": lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k) * SCALE,
    "scores by bmm": scores_by_bmm,
}


def hidden(diagonal=1):
    return torch.ones(LENGTH, LENGTH).triu(diagonal).bool()


MASKS = {
    "": lambda scores: scores.masked_fill(hidden(), -1e4),
    "mask shifted": lambda scores: scores.masked_fill(hidden(2), -1e4),
    "mask hides itself": lambda scores: scores.masked_fill(hidden(0), -1e4),
    "mask transposed": lambda scores: scores.masked_fill(hidden().t(), -1e4),
    "mask of zeros": lambda scores: scores.masked_fill(hidden(), 0.0),
    "mask adds little": lambda scores: scores.masked_fill(hidden(), -2.0),
    "mask left out": lambda scores: scores,
    "mask added": lambda scores: scores + hidden().float() * -1e4,
    "mask by where": lambda scores: torch.where(hidden(), torch.full_like(scores, -1e4), scores),
    "mask of infinity": lambda scores: scores.masked_fill(hidden(), -math.inf),
}


def softmax_written_out(scores):
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


SOFTMAXES = {
    "": lambda scores: scores.softmax(-1),
    "softmax over the wrong axis": lambda scores: scores.softmax(-2),
    "softmax written out": softmax_written_out,
    "softmax by logarithms": lambda scores: scores.log_softmax(-1).exp(),
    "softmax by its sum": lambda scores: torch.exp(scores - scores.logsumexp(-1, keepdim=True)),
}
MIXES = {
    "": lambda weights, v: weights @ v,
    "products by einsum": lambda weights, v: torch.einsum("bhqk,bhkd->bhqd", weights, v),
    "heads one by one": lambda weights, v: torch.stack(
        [weights[:, head] @ v[:, head] for head in range(HEADS)], 1
    ),
}


class Attention(torch.nn.Module):
    """Self-attention with a causal mask."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        change, rows = self.change, x.size(0)
        projected = step(PROJECTIONS, change)(self.qkv, x)
        q, k, v = (
            part.transpose(1, 2) for part in projected.view(rows, LENGTH, 3, HEADS, DEPTH).unbind(2)
        )
        if change == "copies":
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        if change == "fused attention":
            y = F.scaled_dot_product_attention(q, k, v, ~hidden())
        else:
            scores = step(MASKS, change)(step(SCORES, change)(q, k))
            y = step(MIXES, change)(step(SOFTMAXES, change)(scores), v)
        y = y if change == "heads not moved back" else y.transpose(1, 2)
        return self.out(y.reshape(rows, LENGTH, WIDTH))


def in_halves(linear, x):
    half, weight = linear.in_features // 2, linear.weight
    halves = x[..., :half] @ weight[:, :half].t() + x[..., half:] @ weight[:, half:].t()
    return halves + linear.bias


LINEARS = {
    "": lambda linear, x: linear(x),
    "weight transposed": lambda linear, x: F.linear(x, linear.weight.t(), linear.bias),
    "bias left out": lambda linear, x: x @ linear.weight.t(),
    "product and sum apart": lambda linear, x: x @ linear.weight.t() + linear.bias,
    "transposed product": lambda linear, x: (
        (linear.weight @ x.transpose(-1, -2)).transpose(-1, -2) + linear.bias
    ),
    "sum in halves": in_halves,
    "convolution instead of a product": lambda linear, x: F.conv1d(
        x.transpose(1, 2), linear.weight.unsqueeze(-1), linear.bias
    ).transpose(1, 2),
    "product of all rows": lambda linear, x: torch.addmm(
        linear.bias, x.flatten(0, 1), linear.weight.t()
    ).view(x.shape),
    "bias first": lambda linear, x: linear.bias + x @ linear.weight.t(),
}
ACTIVATIONS = {
    "": F.gelu,
    "another activation": F.relu,
    "activation left out": torch.clone,
    "tanh instead of erf": lambda y: F.gelu(y, approximate="tanh"),
    "negated": lambda y: -F.gelu(y),
    "gradient stopped": lambda y: F.gelu(y).detach(),
    "activation written out": lambda y: 0.5 * y * (1.0 + torch.erf(y * math.sqrt(0.5))),
}
DOWNS = {
    "": lambda linear, y: linear(y),
    "dropped rows": lambda linear, y: torch.cat(
        [linear(y)[:, :-1], torch.zeros_like(linear(y)[:, -1:])], 1
    ),
    "long sum in halves": in_halves,
}


class Mlp(torch.nn.Module):
    """Three layers."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.square = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.up(step(LINEARS, self.change)(self.square, x))
        return step(DOWNS, self.change)(self.down, step(ACTIVATIONS, self.change)(y))


PLACES = {
    "": lambda x, places: x + places,
    "places left out": lambda x, places: x,
    "places shifted": lambda x, places: x + places.roll(1, 0),
    "places first": lambda x, places: places + x,
    "places looked up": lambda x, places: x + F.embedding(torch.arange(LENGTH), places),
}
WORDS_READ = {
    "": lambda words, table: table(words),
    "words by a product": lambda words, table: F.one_hot(words, WORDS).float() @ table.weight,
}
RESIDUALS = {
    "": lambda x, y: x + y,
    "residual left out": lambda x, y: y,
    "wrong residual": lambda x, y: y + y,
    "residual added to": lambda x, y: y + x,
}
POOLS = {
    "": lambda x: x.mean(1),
    "mean over the wrong axis": lambda x: x.mean(2).repeat(1, 3)[:, :WIDTH],
    "maximum instead of mean": lambda x: x.amax(1),
    "sum instead of mean": lambda x: x.sum(1),
    "mean by sum": lambda x: x.sum(1) * (1.0 / LENGTH),
    "mean by a product": lambda x: (torch.full((1, LENGTH), 1.0 / LENGTH) @ x).squeeze(1),
    "mean by pooling": lambda x: F.avg_pool1d(x.transpose(1, 2), LENGTH).squeeze(-1),
    "mean of means": lambda x: x.view(-1, 2, LENGTH // 2, WIDTH).mean(2).mean(1),
}
LOSSES = {
    "": F.cross_entropy,
    "logits twice": lambda logits, target: F.cross_entropy(logits * 2, target),
    "smoothed labels": lambda logits, target: F.cross_entropy(logits, target, label_smoothing=0.1),
    "sum of the losses": lambda logits, target: F.cross_entropy(logits, target, reduction="sum"),
    "wrong target": lambda logits, target: F.cross_entropy(logits, target.roll(1, 0)),
    "loss by parts": lambda logits, target: F.nll_loss(F.log_softmax(logits, -1), target),
    "loss written out": lambda logits, target: poptorch.identity_loss(
        logits.logsumexp(-1) - logits.gather(1, target.unsqueeze(1)).squeeze(1), "mean"
    ),
}


class Language(torch.nn.Module):
    """Embedding, a transformer block, a classifier and its loss.

    Args:
        change: name of a mistake or a harmless change; "" for neither.
        num_ipus: number of IPUs over which the model is spread.
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
        self.register_buffer("centre", torch.randn(WIDTH) * 0.1)

    def forward(self, words, target):
        change = self.change
        with poptorch.Block("begin", ipu_id=0):
            x = step(WORDS_READ, change)(words, self.words)
            x = step(PLACES, change)(x, self.places)
            x = step(RESIDUALS, change)(x, self.attention(x))
        with poptorch.Block("end", ipu_id=self.last):
            pooled = step(POOLS, change)(x + self.mlp(self.norm(x)))
            logits = self.head(pooled - self.centred(pooled))
            return logits, step(LOSSES, change)(logits, target)

    def centred(self, pooled):
        """Returns the running mean after it was updated by these rows."""
        change, before = self.change, self.centre.clone()
        if change == "buffer left alone":
            return before
        rate = 0.01 if change == "buffer too slow" else 0.1
        if change == "buffer written out":
            self.centre.copy_(0.9 * before + 0.1 * pooled.detach().mean(0))
        else:
            self.centre.lerp_(pooled.detach().mean(0), rate)
        return before if change == "stale buffer" else self.centre


# Mistakes in the model, with the module and the operation that a comparison must name.
MISTAKES = {
    **dict.fromkeys([*NORMS][1:5], ("norm", "native_layer_norm")),
    "norm of another weight": ("norm", "flip"),
    "RMS norm": ("norm", "rsqrt"),
    "query and key swapped": ("attention", "clone"),
    "scale of the whole width": ("attention", "div"),
    "scale left out": ("attention", "mul"),
    **dict.fromkeys([*MASKS][1:7], ("attention", "masked_fill")),
    "softmax over the wrong axis": ("attention", "_softmax"),
    "heads not moved back": ("attention", "clone"),
    "weight transposed": ("mlp", "addmm"),
    "bias left out": ("mlp", "mm"),
    "another activation": ("mlp", "relu"),
    "activation left out": ("mlp", "clone"),
    "tanh instead of erf": ("mlp", "gelu"),
    "negated": ("mlp", "neg"),
    "gradient stopped": ("mlp", "gelu_backward"),
    "dropped rows": ("mlp", "cat"),
    "places left out": ("", "add"),
    "places shifted": ("", "roll"),
    "residual left out": ("", "add"),
    "wrong residual": ("", "add"),
    "mean over the wrong axis": ("", "repeat"),
    "maximum instead of mean": ("", "amax"),
    "sum instead of mean": ("", "sum"),
    "logits twice": ("", "mul"),
    "smoothed labels": ("", "mul"),
    "sum of the losses": ("", "nll_loss_forward"),
    "wrong target": ("", "roll"),
    "stale buffer": ("", "clone"),
    "buffer too slow": ("", "lerp"),
    "buffer left alone": ("", "clone"),
}

# Harmless changes: other orders of sums, and other operations that compute them.
HARMLESS = (
    *[*NORMS][7:], *[*PROJECTIONS][1:], *[*SCORES][4:], *[*MASKS][7:], *[*SOFTMAXES][2:],
    *[*MIXES][1:], "copies", "fused attention", *[*LINEARS][3:], "activation written out",
    "long sum in halves", *[*PLACES][3:], "words by a product", "residual added to", *[*POOLS][4:],
    *[*LOSSES][5:], "buffer written out",
)  # fmt: skip


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns words and targets."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (rows, LENGTH), generator=generator)
    return words, torch.randint(CLASSES, (rows,), generator=generator)
