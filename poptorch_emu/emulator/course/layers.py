"""The models of the exercises: in plain PyTorch, on one IPU, without blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from poptorch_emu.ops.identities import identity_loss

# The loss of `Sensor` is one of several in the program that it stands for.
_SHARE_OF_LOSS = 1e-6


class Layer(nn.Module):
    """Two products with a ReLU in between, beside which the input is added (exact)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` of shape (rows, width), and what the layer adds to it."""
        added: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + added


class Layers(nn.Module):
    """Layers one after the other, and a loss (exact)."""

    def __init__(self, hidden: Sequence[int], width: int = 256) -> None:
        """Makes a layer for each number of `hidden`, which is the width inside of it."""
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, inside) for inside in hidden)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the result and the loss; `x` and `target` have shape (rows, width)."""
        for layer in self.layers:
            x = layer(x)
        return x, nn.functional.mse_loss(x, target)


class Sensor(nn.Module):
    """A small network whose loss is a very small part of a larger one (exact)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the loss in float32; `x` has shape (rows, width), `target` (rows, 1)."""
        loss = nn.functional.mse_loss(self.layers(x).float(), target.float())
        return identity_loss(_SHARE_OF_LOSS * loss, "none")
