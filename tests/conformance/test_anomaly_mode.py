"""Autograd's anomaly mode, which PyTorch users switch on to look for NaN."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("Autograd's anomaly mode", fidelity="accepted"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
]

X, Y = torch.linspace(-1, 1, 8).reshape(4, 2), torch.ones(4, 1)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.autograd.set_detect_anomaly(False)


class Model(nn.Module):
    """Sets what `mode` enters in forward, around a gradient of its own."""

    def __init__(self, mode=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.mode = nn.Linear(2, 1), mode

    def forward(self, x, y):
        if self.mode is None:
            return nn.functional.mse_loss(self.linear(x), y)
        with self.mode():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)
            return nn.functional.mse_loss(slope.sum(1, keepdim=True), y)


def trained(mode=None) -> torch.Tensor:
    model = Model(mode)
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training(X, Y)
    return model.linear.weight.detach().clone()


@contextmanager
def set_in_forward() -> Iterator[None]:
    torch.autograd.set_detect_anomaly(True)
    yield


MODES = {
    "set": lambda: torch.autograd.set_detect_anomaly(True),
    "without a check": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "context": torch.autograd.detect_anomaly,
    "unchecked context": lambda: torch.autograd.detect_anomaly(check_nan=False),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_when_anomalies_are_looked_for_then_as_without(mode) -> None:
    expected = trained()
    with mode():
        state = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        assert torch.equal(trained(), expected)
        assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == state
    assert not torch.is_anomaly_enabled()


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_gradient_in_forward_when_anomalies_are_looked_for_there_then_as_without(mode) -> None:
    expected = trained(lambda: torch.enable_grad())
    assert torch.equal(trained(mode), expected)
    assert not torch.is_anomaly_enabled()


def test_mode_when_forward_leaves_it_set_then_it_stays_set_as_after_a_plain_call() -> None:
    trained(set_in_forward)
    assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def test_training_when_anomalies_are_looked_for_then_the_devices_way_is_named(caplog) -> None:
    with torch.autograd.detect_anomaly(), caplog.at_level(logging.WARNING):
        trained()
    assert "enableFloatingPointExceptions(True)" in caplog.text


def test_mode_after_a_failed_trace_then_as_before() -> None:
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("wrong")

    with torch.autograd.detect_anomaly():
        with pytest.raises(ValueError, match="wrong"):
            poptorch.inferenceModel(Fails())(X)
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
