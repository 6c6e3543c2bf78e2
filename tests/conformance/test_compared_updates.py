"""`emulator.compare` where runs draw nothing, update other tensors, or hold integers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")

F = nn.functional


class Attentions(nn.Module):
    """Two attentions, which PyTorch marks as random although they drop nothing, then dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.drop = nn.Dropout(0.2)

    def forward(self, x, y):
        for layer in self.layers:
            x = self.drop(F.scaled_dot_product_attention(layer(x), x, x))
        return x, F.mse_loss(x, y)


class Leaky(nn.Module):
    """Two activations with slopes at random."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.RReLU(), nn.Linear(16, 16), nn.RReLU())

    def forward(self, x, y):
        x = self.layers(x)
        return x, F.mse_loss(x, y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x, y):
        x = self.layer(x)[0]
        return x, F.mse_loss(x, y)


def trainer(model: nn.Module, beta: float = 0.9) -> poptorch.PoplarExecutor:
    trained = [each for each in model.parameters() if each.requires_grad]
    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.trainingModel(
        model, options, poptorch.optim.AdamW(trained, lr=0.1, betas=(beta, 0.99))
    )


BATCH = torch.randn(2, 4, 6, 16, generator=torch.Generator().manual_seed(0)).unbind()


@pytest.mark.parametrize("model", [Attentions, Leaky, Recurrent])
def test_model_against_plain_pytorch_then_rounding_explains_all(model) -> None:
    training = trainer(model())
    assert emulator.compare(training, *BATCH).verdict <= emulator.Verdict.REORDERED
    wide = emulator.compare(training, *BATCH, against=torch.float64)
    assert wide.verdict <= emulator.Verdict.LESS_PRECISION


def test_weight_that_the_other_run_freezes_then_is_named() -> None:
    model = Recurrent()
    other = copy.deepcopy(model)
    other.layer.bias_hh_l0.requires_grad_(False)
    report = emulator.compare(trainer(model), *BATCH, against=trainer(other))
    assert report.verdict is emulator.Verdict.DIFFERENT
    assert "update of layer.bias_hh_l0" in str(report) and "Only this run updates" in str(report)


def test_states_that_only_a_later_step_reads_then_are_compared() -> None:
    """The first step of Adam has the same weights for all of its betas."""
    model = Recurrent()
    report = emulator.compare(trainer(model), *BATCH, against=trainer(copy.deepcopy(model), 0.5))
    assert report.verdict is emulator.Verdict.DIFFERENT
