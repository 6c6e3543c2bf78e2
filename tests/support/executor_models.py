"""Models of one weight, and helpers for the tests of the executor."""

from __future__ import annotations

import torch
from torch import nn

import poptorch_emu as poptorch

NOT_COMPILED = "Model has not been compiled or has been destroyed."


class Linear(nn.Module):
    """A weight, a running buffer and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return poptorch.identity_loss(self.weight * x, "sum")


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + torch.rand_like(x)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


X = torch.ones(1)


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def training(model: nn.Module, lr: float = 0.5) -> poptorch.PoplarExecutor:
    optimizer = poptorch.optim.SGD(model.parameters(), lr=lr)
    return poptorch.trainingModel(model, options(), optimizer)


def host_value(tensor: torch.Tensor) -> float:
    """Returns the value in the host's memory, without the synchronisation of an ordinary read."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.item(torch.Tensor.detach(tensor))
