"""Instance norm, with and without weights and running statistics, against plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from support.helpers import Setting, assert_same_training
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("InstanceNorm", fidelity="exact")

# The layer for inputs of 1, 2 and 3 dimensions beside batch and channels.
KINDS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
CHANNELS, SIZE = 3, 5


class Normed(nn.Module):
    def __init__(self, num_dims: int, affine: bool, tracks: bool) -> None:
        super().__init__()
        self.before = nn.Linear(SIZE, SIZE)
        self.norm = KINDS[num_dims](CHANNELS, affine=affine, track_running_stats=tracks)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        x = self.norm(self.before(x))
        return x, nn.functional.mse_loss(x, y)


def batch(num_dims: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (rows, CHANNELS, *[2] * (num_dims - 1), SIZE)
    return torch.randn(shape) * 2 + 1, torch.randn(shape)


@pytest.mark.parametrize("tracks", [False, True], ids=["batch statistics", "running statistics"])
@pytest.mark.parametrize("affine", [False, True], ids=["plain", "affine"])
@pytest.mark.parametrize("num_dims", KINDS)
def test_instance_norm_when_trained_then_equals_the_plain_loop(
    num_dims: int, affine: bool, tracks: bool
) -> None:
    """Weights, losses and running statistics, over several micro-batches and updates a call."""
    assert_same_training(
        Normed(num_dims, affine, tracks),
        lambda rows: batch(num_dims, rows),
        Setting("sharded", accumulation=2, iterations=2),
        num_updates=6,
    )


@pytest.mark.parametrize("affine", [False, True], ids=["plain", "affine"])
def test_instance_norm_when_evaluated_then_uses_the_running_statistics(affine: bool) -> None:
    model = Normed(1, affine, tracks=True)
    for _ in range(3):
        model(*batch(1, 4))
    plain = copy.deepcopy(model).eval()
    x, y = batch(1, 2)
    inference = poptorch.inferenceModel(model.eval(), Setting("sharded").options())
    torch.testing.assert_close(inference(x, y), plain(x, y), rtol=1e-5, atol=1e-6)
    without = Normed(1, affine, tracks=False)
    without.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(plain(x, y)[0], without(x, y)[0], atol=0.1)
