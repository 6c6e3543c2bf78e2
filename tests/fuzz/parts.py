"""The parts of random models. Each maps (rows, width) to the same shape, on the IPU and off it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import poptorch_emu as poptorch
from poptorch_emu.emulator import register_custom_op

DOMAIN = "test.fuzz"
LOOP_COUNT = 3


def register_operators() -> None:
    """Registers the operators that `Custom` uses."""
    register_custom_op("Bend", DOMAIN, bend)


def bend(x: torch.Tensor, by: float = 0.0) -> torch.Tensor:
    """Returns a smooth curve through the origin."""
    return x * torch.sigmoid(x + by)


class Linear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


class Skip(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Checkpointed(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x.unsqueeze(1)).squeeze(1))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.unsqueeze(0)
        return x + self.layer(rows, rows, rows)[0].squeeze(0)


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.GRU(1, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x.unsqueeze(2))[0].sum(2)


class BatchNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(width, eps=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Counting(nn.Module):
    """Writes to a buffer and reads the result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.mul_(0.5).add_(x.detach().mean(0))
        return x + 0.1 * self.seen


class Shared(Counting):
    """Writes to a buffer that all such parts of a model share, which several stages may not do."""


class InPlace(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.bias
        y[:, :1].mul_(0.5)
        return y.tanh_()


class Loop(Linear):
    def step(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) * 0.5 + x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if poptorch.isRunningOnIpu():
            return poptorch.for_loop(LOOP_COUNT, self.step, [x])[0]
        for _ in range(LOOP_COUNT):
            x = self.step(x)
        return x


class Branch(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_positive = x[0, 0] > 0  # Not a sum, which after a norm is zero except for rounding.
        if poptorch.isRunningOnIpu():
            return poptorch.cond(is_positive, super().forward, [x], torch.sin, [x])[0]
        # On the IPU the branch that is not taken has a gradient of zeros instead of none.
        one, other = super().forward(x), torch.sin(x)
        return one + 0 * other if is_positive else other + 0 * one


class Empty(nn.Module):
    """Applies operations to tensors without elements."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        none = torch.tanh(x[:, :0]) + self.nothing
        return torch.cat([none, x[:0].sum(0, keepdim=True) + x, none * 2], dim=1)


class Custom(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        if poptorch.isRunningOnIpu():
            return poptorch.custom_op([x], "Bend", DOMAIN, 1, [x], {"by": 0.25})[0]
        return bend(x, by=0.25)


class Noise(nn.Module):
    """Dropout and normal noise; only for comparisons with another emulated run."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3) + 0.1 * torch.randn_like(x)


class OnHost(nn.Module):
    """A call of the host, for inference only, because it has no gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.call = poptorch.CPU(lambda x: torch.cumsum(x, 1), "cumulate")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


PLAIN = {
    part.__name__: part
    for part in (Linear, Skip, Checkpointed, Convolution, Attention, Recurrent, LayerNorm)
} | {part.__name__: part for part in (InPlace, Loop, Branch, Empty, Custom)}
# Parts that write buffers, whose values differ between replicas.
WITH_BUFFERS = {"BatchNorm": BatchNorm, "Counting": Counting, "Shared": Shared}
ALL: dict[str, Callable[[int], nn.Module]] = {
    **PLAIN,
    **WITH_BUFFERS,
    "Noise": Noise,
    "OnHost": OnHost,
}


class Model(nn.Module):
    """A chain of parts, each in a block on its IPU, and a loss; returns (output, loss)."""

    def __init__(self, names: tuple[str, ...], ipus: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(ALL[name](width) for name in names)
        shared = [part for part in self.parts if isinstance(part, Shared)]
        for part in shared:
            part.seen = shared[0].seen
        self.ipus = ipus

    def forward(self, x: torch.Tensor, wanted: torch.Tensor):
        for index, part in enumerate(self.parts):
            with poptorch.Block(f"part{index}", ipu_id=self.ipus[index]):
                x = part(x)
        with poptorch.Block("loss", ipu_id=self.ipus[-1]):
            return x, F.mse_loss(x, wanted)
