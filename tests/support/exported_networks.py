"""Networks over any number of IPUs that stress the values between stages of exported pipelines."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch


class Mlp(nn.Module):
    """A layer on each IPU, with a skip connection from the first layer to the head."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_ipus))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        first = value = torch.tanh(self.layers[0](x))
        for ipu, layer in enumerate(list(self.layers)[1:], 1):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = torch.relu(layer(value))
        logits = self.head(value + first)
        return logits, F.cross_entropy(logits, labels)


class Cnn(nn.Module):
    """Convolutions and a group norm; an integer mask passes through the stages."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.middle = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(num_ipus - 1))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        value = F.relu(self.norm(self.first(x)))
        is_large = value > 1.0
        for ipu, layer in enumerate(self.middle, 1):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = F.relu(layer(value))
        value = F.max_pool2d(torch.where(is_large, value, 0.5 * value), 4)
        return F.cross_entropy(self.head(value.flatten(1)), labels)


class Transformer(nn.Module):
    """Token and position embeddings, then a block of attention on each IPU.

    The blocks have no biases: the bias of the keys has no effect, so its gradient is mere rounding,
    which Adam would turn into full steps.
    """

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.register_buffer("positions", torch.randn(4, 8))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, bias=False)
            for _ in range(num_ipus)
        )
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        value = self.tokens(tokens) + self.positions
        for ipu, block in enumerate(self.blocks):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = block(value)
        logits = self.head(value)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Tied(nn.Module):
    """A network whose embedding is also the last layer's weight, with a bias read on each IPU."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_ipus))
        for layer in list(self.layers)[1:]:
            layer.bias = self.layers[0].bias
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        value = self.tokens(tokens)
        for ipu, layer in enumerate(self.layers):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = value + torch.tanh(layer(value))
        return F.cross_entropy(self.head(value).flatten(0, 1), labels.flatten())


class Decoder(nn.Module):
    """Attention with rotary tables and a mask, all created on the first IPU and used on each."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.register_buffer("frequency", 0.1 ** torch.arange(4), persistent=False)
        self.inputs = nn.ModuleList(nn.Linear(8, 24, bias=False) for _ in range(num_ipus))
        self.outputs = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_ipus))
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        count = tokens.shape[1]
        angles = torch.arange(count)[:, None] * self.frequency
        tables = angles.cos(), angles.sin()
        is_before = torch.ones(count, count, dtype=torch.bool).tril()
        mask = (is_before & (tokens != 0)[:, None]) | torch.eye(count, dtype=torch.bool)
        value = self.tokens(tokens)
        for ipu, (inputs, outputs) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            query, key, values = inputs(value).chunk(3, -1)
            scores = _turned(query, tables) @ _turned(key, tables).mT
            value = value + outputs(scores.masked_fill(~mask, -1e9).softmax(-1) @ values)
        return F.cross_entropy(self.head(value).flatten(0, 1), labels.flatten())


def _turned(value: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    (left, right), (cos, sin) = value.chunk(2, -1), tables
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class UNet(nn.Module):
    """A network in which each layer on the way up reads the result of its size on the way down."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_ipus))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        made, value = [], x
        for ipu, layer in enumerate(self.layers):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            is_up = 2 * ipu >= len(self.layers)
            value = torch.tanh(layer(value + made.pop() if is_up else value))
            if not is_up:
                made.append(value)
        return F.cross_entropy(self.head(value + x), labels)


class Biased(nn.Module):
    """Values of weights alone are read on their IPU and on the next one; layers are used twice."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_ipus))
        self.biases = nn.ParameterList(torch.randn(8) for _ in range(num_ipus))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        before = torch.zeros(8)
        for ipu, (layer, own) in enumerate(zip(self.layers, self.biases, strict=True)):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            bias = torch.tanh(own)[None]
            x = torch.tanh(layer(torch.tanh(layer(x) + bias))) + before
            before = bias
        losses = F.cross_entropy(self.head(x), labels, reduction="none")
        return poptorch.identity_loss(losses.mean(0, keepdim=True).squeeze(), "none")
