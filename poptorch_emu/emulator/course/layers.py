"""Models of the exercises: plain PyTorch, on one IPU, without blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from poptorch_emu.ops.identities import identity_loss

# Factor of `Sensor`'s loss, which stands for a small term in the loss of a larger program.
_SHARE_OF_LOSS = 1e-6


class Layer(nn.Module):
    """Two linear layers with a ReLU in between, and a residual connection (exact)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x`, of shape (rows, width), plus the result of the two linear layers."""
        added: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + added


class Layers(nn.Module):
    """A sequence of layers, and a loss (exact)."""

    def __init__(self, hidden: Sequence[int], width: int = 256) -> None:
        """Creates a layer for each number of `hidden`, the size of its hidden features."""
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, inside) for inside in hidden)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the result and the loss; `x` and `target` have shape (rows, width)."""
        for layer in self.layers:
            x = layer(x)
        return x, nn.functional.mse_loss(x, target)


class Sensor(nn.Module):
    """A small network whose loss is a tiny share of a larger loss (exact)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the loss in float32; `x` has shape (rows, width), `target` (rows, 1)."""
        loss = nn.functional.mse_loss(self.layers(x).float(), target.float())
        return identity_loss(_SHARE_OF_LOSS * loss, "none")
