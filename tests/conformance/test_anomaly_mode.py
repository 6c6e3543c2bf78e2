"""Autograd's anomaly mode, which PyTorch users switch on to look for NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = [
    pytest.mark.feature("Autograd's anomaly mode", fidelity="exact"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
]

X, Y = torch.linspace(-1, 1, 8).reshape(4, 2), torch.ones(4, 1)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.autograd.set_detect_anomaly(False)


class Model(nn.Module):
    """Computes a gradient in forward, within the context that `mode` returns."""

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


class Root(nn.Module):
    """A model whose gradient is NaN if its layer returns only zeros."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 1, bias=False)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.linear(x).square().sum(-1).sqrt(), y)


def training_of(model, accumulation=1, optimizer=torch.optim.SGD):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    return poptorch.trainingModel(model, options, optimizer(model.parameters(), lr=0.1))


def test_gradient_when_it_is_nan_then_its_operation_is_named_as_pytorch_does() -> None:
    x, y = torch.zeros(4, 2), torch.ones(4)
    with torch.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match="'PowBackward0' returned nan"):
            Root()(x, y).backward()
        with pytest.raises(poptorch.Error, match="Autograd's anomaly mode is on") as found:
            training_of(Root())(x, y)
    assert "(backward) at test_anomaly_mode.py" in str(found.value)
    assert "not finite in the end: gradient linear.weight" in str(found.value)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_call_when_only_the_third_is_bad_then_it_fails_with_the_weights_before_it(
    optimizer,
) -> None:
    training = training_of(Root(), 2, optimizer)
    good = torch.rand(4, 2) + 0.1
    bad = good.clone()
    bad[2:] = 0.0
    with torch.autograd.detect_anomaly():
        for _ in range(2):
            training(good, torch.ones(4))
        with pytest.raises(poptorch.Error, match="micro-batch 1"):
            training(bad, torch.ones(4))


class Beside(nn.Module):
    """A model with NaN in an output or in a buffer, although its loss is finite."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(2, 1), kind
        self.register_buffer("kept", torch.zeros(4, 1))

    def forward(self, x, y):
        out = self.linear(x)
        beside = (x[:, :1] - 3).log()
        if self.kind == "buffer":
            self.kept.copy_(beside)
            return nn.functional.mse_loss(out, y)
        return beside.detach(), nn.functional.mse_loss(out, y)


def test_output_when_it_is_nan_and_no_gradient_is_then_the_call_returns_as_in_pytorch() -> None:
    with torch.autograd.detect_anomaly():
        plain, loss = Beside("output")(X, Y)
        loss.backward()
        found, _ = training_of(Beside("output"))(X, Y)
    assert plain.isnan().all() and found.isnan().all()


def test_buffer_when_it_becomes_nan_then_it_and_the_operation_are_named_once() -> None:
    training = training_of(Beside("buffer"))
    with torch.autograd.detect_anomaly():
        with pytest.raises(poptorch.Error, match="which are in kept now") as found:
            training(X, Y)
        training(X, Y)  # The buffer is already NaN, so this call does not raise.
    assert "first: log (forward) at test_anomaly_mode.py" in str(found.value)


@pytest.mark.parametrize("is_read", [True, False])
def test_stream_when_a_gradient_is_nan_then_its_end_names_the_operation(is_read) -> None:
    training = training_of(Root(), 2)
    good = torch.rand(4, 2) + 0.1
    bad = good.clone()
    bad[2:] = 0.0
    with torch.autograd.detect_anomaly():
        with emulator.stream(training, good, torch.ones(4)) as results:
            assert len(list(results)) == 1
        results = emulator.stream(training, bad, torch.ones(4))
        bad.fill_(1.0)  # A loader may reuse its memory while the stream runs.
        if is_read:
            assert next(results).shape == (2,)
        with pytest.raises(poptorch.Error, match=r"linear\.weight now[^$]*micro-batch 1"):
            next(results) if is_read else results.close()


def test_state_of_the_optimizer_when_anomalies_are_looked_for_then_as_without() -> None:
    states = []
    for is_on in False, True:
        torch.manual_seed(0)
        training = training_of(Model(), optimizer=torch.optim.Adam)
        with torch.autograd.set_detect_anomaly(is_on):
            for _ in range(3):
                training(X, Y)
        states.append(training._optimizer.state_dict()["state"][0])
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_call_when_nan_is_not_looked_for_then_it_returns() -> None:
    training = training_of(Root())
    with torch.autograd.detect_anomaly(check_nan=False):
        training(torch.zeros(4, 2), torch.ones(4))
    assert training.model.linear.weight.isnan().all()


def test_inference_when_it_makes_nan_then_it_returns_as_in_pytorch() -> None:
    model = poptorch.inferenceModel(nn.LogSigmoid())
    with torch.autograd.detect_anomaly():
        assert model(torch.tensor([math.nan])).isnan().all()


def test_mode_after_a_failed_trace_then_as_before() -> None:
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("wrong")

    with torch.autograd.detect_anomaly():
        with pytest.raises(ValueError, match="wrong"):
            poptorch.inferenceModel(Fails())(X)
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
