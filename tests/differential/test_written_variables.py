"""Parameters and buffers that forward changes in place, as in eager PyTorch (semantics 8, 15)."""

from __future__ import annotations

import copy

import pytest
import torch
from support.helpers import Setting, assert_same_training
from torch import nn
from torch.nn.utils import parametrizations

import poptorch_emu as poptorch


class Changed(nn.Module):
    """Two stages; `change` is called in the first one."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.table = nn.Embedding(2, 4, max_norm=0.5)
        self.normed = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.head = nn.Linear(4, 3)
        self.register_buffer("state", torch.ones(4))
        self.register_buffer("rows", torch.ones(2, 4))

    def forward(self, x: torch.Tensor, target: torch.Tensor):
        with poptorch.Block(ipu_id=0):
            x = self.change(self, x @ self.weight)
        with poptorch.Block(ipu_id=1):
            return x, nn.functional.cross_entropy(self.head(x), target)


def clamp_before(self, x):
    with torch.no_grad():
        self.weight.clamp_(-0.3, 0.3)
    return x @ self.weight


def decay_after(self, x):
    y = x @ self.weight
    self.weight.data.mul_(0.9)
    return y


def renormalised_table(self, x):
    return self.table((x > 0).long()).sum(1)


def spectral_norm(self, x):
    return self.normed(x)


def write_only(self, x):
    self.state.copy_(x.detach().mean(0))
    self.rows.copy_(x.detach())
    return x


CHANGES = [clamp_before, decay_after, renormalised_table, spectral_norm, write_only]


@pytest.mark.feature("In-place operations", fidelity="exact")
@pytest.mark.parametrize("strategy", ["pipelined", "sharded"])
@pytest.mark.parametrize("change", CHANGES)
def test_variable_that_forward_changes_then_trains_as_in_eager(change, strategy) -> None:
    torch.manual_seed(3)

    def batch(rows: int):
        return torch.randn(rows, 4), torch.randint(0, 3, (rows,))

    setting = Setting(strategy, accumulation=3)
    assert_same_training(Changed(change), batch, setting, num_updates=3)


class Remembering(nn.Module):
    """Keeps the input of the last micro-batch in the second of two stages."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.reads = reads
        self.register_buffer("last", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor):
        with poptorch.Block(ipu_id=0):
            y = self.layer(x)
        with poptorch.Block(ipu_id=1):
            y = y * 2 + self.last if self.reads else y * 2
            self.last.copy_(x if self.reads else y)
        return y


@pytest.mark.parametrize("reads", [True, False])
def test_buffer_of_a_later_stage_then_each_micro_batch_sees_what_the_one_before_left(reads) -> None:
    torch.manual_seed(3)
    plain = Remembering(reads)
    x = torch.randn(8, 4)
    model = poptorch.inferenceModel(copy.deepcopy(plain), Setting(iterations=8).options())
    torch.testing.assert_close(model(x), torch.cat([plain(row) for row in x.split(1)]).detach())
    model.copyWeightsToHost()
    torch.testing.assert_close(model.last, plain.last)


def test_trained_parameter_when_replicas_change_it_then_error_names_it_and_the_line() -> None:
    options = Setting("sharded", replicas=2).options().broadcastBuffers(False)
    model = Changed(clamp_before)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    line = f"{__file__}:{clamp_before.__code__.co_firstlineno + 2}"
    with pytest.raises(poptorch.Error, match="Parameter weight is trained") as raised:
        poptorch.trainingModel(model, options, optimizer)(torch.randn(4, 4), torch.zeros(4).long())
    assert line in str(raised.value) and "one replica" in str(raised.value)
