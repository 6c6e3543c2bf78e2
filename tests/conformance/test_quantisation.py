"""Quantisation-aware training (`torch.ao.quantization`): observers are those of plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn
from torch.ao import quantization

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("Quantisation-aware training", fidelity="exact"),
    pytest.mark.filterwarnings("ignore"),
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = quantization.QuantStub()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.linear = nn.Linear(16, 3)
        self.leave = quantization.DeQuantStub()

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        y = self.relu(self.norm(self.convolution(self.enter(x))))
        y = self.leave(self.linear(y.flatten(1)))
        return y, F.cross_entropy(y, labels)


def prepared(backend: str, is_fused: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Model().train()
    if is_fused:
        model = quantization.fuse_modules_qat(model, [["convolution", "norm", "relu"]])
    model.qconfig = quantization.get_default_qat_qconfig(backend)
    return quantization.prepare_qat(model, inplace=True)


@pytest.mark.parametrize("is_fused", [False, True])
# fbgemm quantises per channel, and qnnpack per tensor.
@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_model_that_is_prepared_when_trained_then_weights_and_observers_are_those_of_pytorch(
    backend: str, is_fused: bool
) -> None:
    model = prepared(backend, is_fused)
    plain = copy.deepcopy(model)
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        x, labels = torch.randn(4, 1, 4, 4), torch.randint(3, (4,))
        _, loss = training(x, labels)
        optimizer.zero_grad()
        expected = plain(x, labels)[1]
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    training.destroy()
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)
