"""Parameters that `forward` changes in place and that are trained: semantics.md section 15."""

from __future__ import annotations

import copy

import pytest
import torch
from support.helpers import Setting, assert_same_training
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("In-place operations", fidelity="exact")


class Model(nn.Module):
    """Looks rows up, multiplies them, and compares the result with a target."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, max_norm=max_norm)
        self.layer = nn.Linear(4, 2)

    def change_before(self) -> None:
        pass

    def change_after(self) -> None:
        pass

    def forward(self, index: torch.Tensor, target: torch.Tensor):
        self.change_before()
        output = self.layer(self.table(index)).tanh()
        self.change_after()
        return output, poptorch.identity_loss((output - target).square().mean(), "none")


class Clamped(Model):
    @torch.no_grad()
    def change_before(self) -> None:
        self.layer.weight.clamp_(-0.2, 0.2)


class Decayed(Model):
    def change_before(self) -> None:
        self.layer.weight.data.mul_(0.9)


class Masked(Model):
    """Assigns a parameter that it has changed in place, as `weight.data *= mask` does in Python."""

    def change_before(self) -> None:
        self.layer.weight.data *= torch.ones(2, 4, device=self.layer.weight.device).tril()


class ClampedAfterwards(Model):
    @torch.no_grad()
    def change_after(self) -> None:
        self.layer.bias.clamp_(-0.1, 0.1)


MODELS = {
    "clamped": Clamped(),
    "decayed": Decayed(),
    "masked": Masked(),
    "clamped afterwards": ClampedAfterwards(),
    "embedding of limited norm": Model(max_norm=0.8),
}


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(10, (rows,)), torch.randn(rows, 2)


@pytest.mark.parametrize("setting", [Setting(), Setting(accumulation=3), Setting(iterations=2)])
@pytest.mark.parametrize("name", MODELS)
def test_training_when_forward_changes_a_parameter_then_equals_plain_pytorch(name, setting):
    torch.manual_seed(0)
    assert_same_training(MODELS[name], batch, setting, num_updates=6)


@pytest.mark.parametrize("broadcasts", [True, False])
def test_training_when_replicas_would_change_a_parameter_then_error(broadcasts):
    model = copy.deepcopy(MODELS["clamped"])
    options = Setting(replicas=2).options().broadcastBuffers(broadcasts)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    with pytest.raises(poptorch.Error, match="layer.weight is trained, but forward changes it"):
        training(*batch(4))
