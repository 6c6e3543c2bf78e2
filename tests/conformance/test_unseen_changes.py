"""Changes on the host that a compiled model does not see cause one warning, and only they do."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

X = torch.tensor([[1.0, 2.0], [3.0, -1.0]])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("shift", torch.zeros(2))
        self.register_buffer("order", torch.arange(2))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(
            self.dropout(self.layer(x) + self.shift)[:, self.order], "sum"
        )


class Run:
    """A model that was trained for one call."""

    def __init__(self) -> None:
        self.model = Model()
        self.optimizer = poptorch.optim.SGD(self.model.parameters(), lr=0.1)
        options = poptorch.Options().showCompilationProgressBar(False)
        self.training = poptorch.trainingModel(self.model, options, self.optimizer)
        self.training(X)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the warnings about the host; the compiler also warns that `order` is a constant."""
    return [r.getMessage() for r in caplog.records if r.name == "poptorch::python"]


def write_weight(run: Run) -> None:
    with torch.no_grad():
        run.model.layer.weight.zero_()


def write_buffer(run: Run) -> None:
    run.model.shift.add_(1)


def change_rate(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = 0.5


def change_groups(run: Run) -> None:
    run.optimizer.param_groups[0] = {**run.optimizer.param_groups[0], "lr": 0.5}


TRAPS = {
    "parameter": (write_weight, r"layer.weight was changed on the host.*copyWeightsToDevice\(\)"),
    "buffer": (write_buffer, r"shift was changed on the host.*copyWeightsToDevice\(\)"),
    "optimizer": (change_rate, r"The optimizer's lr changed.*setOptimizer\(optimizer\)"),
    "group": (change_groups, r"The optimizer's lr changed.*setOptimizer\(optimizer\)"),
    "eval": (
        lambda run: run.model.eval(),
        r"the model was compiled after train\(\) and is in eval\(\) now",
    ),
    "part": (
        lambda run: run.model.dropout.eval(),
        r"dropout was compiled after train\(\) and is in eval\(\) now",
    ),
    "data": (lambda run: run.model.layer.weight.data.zero_(), "layer.weight was changed on the"),
    "other memory": (
        lambda run: setattr(run.model.layer.weight, "data", torch.zeros(2, 2)),
        "layer.weight was changed on the host",
    ),
    "integers": (
        lambda run: run.model.order.fill_(1),
        r"order was changed, which is a constant in the compiled model.*destroy\(\)",
    ),
    "another parameter": (
        lambda run: setattr(run.model.layer, "bias", nn.Parameter(torch.ones(2))),
        "layer.bias is another object than when the model was compiled",
    ),
    "another part": (
        lambda run: setattr(run.model, "layer", nn.Linear(2, 2)),
        "layer is another object than when the model was compiled",
    ),
    "frozen": (
        lambda run: run.model.layer.bias.requires_grad_(False),
        r"requires_grad of layer.bias was True when it was compiled",
    ),
}


@pytest.mark.parametrize(("change", "message"), TRAPS.values(), ids=TRAPS)
def test_change_that_the_device_does_not_see_then_said_once_at_the_next_call(
    change: Callable[[Run], object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    run.training(X)
    assert said(caplog) == []
    change(run)
    run.training(X)
    assert len(said(caplog)) == 1
    assert re.search(message, said(caplog)[0])
    change(run)
    run.training(X)
    assert len(said(caplog)) == 1


def test_step_on_the_host_then_said_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    for _ in range(2):
        run.optimizer.step()
    (message,) = said(caplog)
    assert "optimizer.step() was called" in message
    run.training.destroy()
    caplog.clear()
    run.optimizer.step()
    assert said(caplog) == []


RIGHT = {
    "upload": lambda run: (write_weight(run), run.training.copyWeightsToDevice()),
    "state dict": lambda run: run.training.load_state_dict(run.model.state_dict()),
    "set optimizer": lambda run: (change_rate(run), run.training.setOptimizer(run.optimizer)),
    "read": lambda run: run.model.layer.weight.sum().item(),
    "download": lambda run: run.training.copyWeightsToHost(),
    "detach": lambda run: (run.training.detachFromDevice(), write_weight(run)),
    "destroy": lambda run: (run.training.destroy(), run.model.eval(), write_weight(run)),
    "there and back": lambda run: (run.model.eval(), run.model.train()),
    "evaluate": lambda run: poptorch.inferenceModel(run.model)(X),
}


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT)
def test_change_that_the_device_is_told_of_then_nothing_is_said(
    change: Callable[[Run], object], caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    for _ in range(2):
        change(run)
        run.training(X)
    assert said(caplog) == []


def test_two_trainers_of_one_weight_then_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    first = Run()
    other = Model()
    other.layer = first.model.layer
    optimizer = poptorch.optim.SGD(other.parameters(), lr=0.1)
    options = poptorch.Options().showCompilationProgressBar(False)
    second = poptorch.trainingModel(other, options, optimizer)
    observer = poptorch.inferenceModel(first.model, options)
    for _ in range(3):
        first.training(X), second(X), observer(X)
    assert said(caplog) == []


def test_scheduler_when_used_as_documented_then_nobody_warns(caplog) -> None:
    run = Run()
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            run.training(X)
            scheduler.step()
            run.training.setOptimizer(run.optimizer)
    assert run.optimizer.param_groups[0]["lr"] == 0.1 / 4
    assert said(caplog) == []


def test_scheduler_of_cycles_when_made_after_the_first_call_then_nobody_warns(caplog) -> None:
    run = Run()
    run.optimizer.param_groups[0]["momentum"] = 0.0
    make = torch.optim.lr_scheduler.OneCycleLR
    scheduler = make(run.optimizer, 0.1, total_steps=5, cycle_momentum=False)
    run.training.setOptimizer(run.optimizer)
    run.training(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert said(caplog) == []


schedulers = torch.optim.lr_scheduler
SCHEDULERS = {
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 5),
    "plateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=0),
    "cycles": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, total_steps=9),
    "sequence": lambda optimizer: schedulers.SequentialLR(
        optimizer, [schedulers.LinearLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("optim", [torch.optim, poptorch.optim], ids=["torch", "poptorch"])
def test_scheduler_of_any_kind_when_used_as_documented_then_trains_as_pytorch_and_nobody_warns(
    make: Callable, optim, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Model()
    plain = copy.deepcopy(model)
    optimizers = [optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, plain)]
    ours, theirs = map(make, optimizers)
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, optimizers[0])
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            for mine, given in zip(reference.param_groups, optimizers[1].param_groups, strict=True):
                mine.update({name: given[name] for name in ("lr", "momentum")})
            reference.zero_grad()
            plain(X).backward()
            reference.step()
            optimizers[1]._opt_called = True  # The reference has made the step.
            training(X)
            for scheduler in (ours, theirs):
                scheduler.step(*([1.0] if make is SCHEDULERS["plateau"] else []))
            training.setOptimizer(optimizers[0])
    assert said(caplog) == []
    for actual, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.detach(), expected.detach())
