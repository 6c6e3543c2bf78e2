"""A small regression, its batches and the plain PyTorch loop, for the tests of optimisers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Regression(nn.Module):
    """Two layers and a squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.second(self.first(x).tanh()), y)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator))
        for _ in range(count)
    ]


def train_plain(model: nn.Module, optimizer: torch.optim.Optimizer, data: list) -> None:
    for x, y in data:
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()


def assert_same_parameters(left: nn.Module, right: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, a), b in zip(left.named_parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
