"""`passes/simplify.py` on recorded models."""

from __future__ import annotations

import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor):
        y = self.layer(x)[0]
        return y, poptorch.identity_loss(y.square(), "mean")


def trainings(model: poptorch.PoplarExecutor) -> list[bool]:
    """Returns of each recurrent layer whether it keeps what backward needs."""
    target = torch.ops.poptorch_emu.rnn_layer.default
    graph = model._executable.graph
    return [bool(node.args[5]) for node in graph.operations if node.target is target]


def test_recurrent_layer_when_inferred_then_keeps_no_reserve() -> None:
    module, x = Recurrent(), torch.randn(2, 5, 3)
    inference = poptorch.inferenceModel(module, options())
    torch.testing.assert_close(inference(x)[0], module.layer(x)[0].detach())
    assert trainings(inference) == [False, False]


def test_recurrent_layer_when_trained_then_keeps_its_reserve() -> None:
    module = Recurrent()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    training = poptorch.trainingModel(module, options(), optimizer)
    training(torch.randn(2, 5, 3))
    assert trainings(training) == [True, True]
    training.destroy()
