"""The cache's key contains everything that controls `forward` beside weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("enableExecutableCaching", fidelity="exact")

X = torch.tensor([[0.5, -1.5, 2.0]])


class Steered(nn.Module):
    """Computes the result of `act` for an input and for other values of the host."""

    def __init__(self, act: Callable[[Any, torch.Tensor], torch.Tensor], **host: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.act = act
        self.host = host

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.act(self, self.linear(x))
        return y, poptorch.identity_loss(y, reduction="sum")


def times_number(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * model.host["value"]


def branch(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x.relu() if model.host["value"] else x.tanh()


def loop(model: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(model.host["value"]):
        x = x + x
    return x


def tensor_of_host(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(model.host["value"], device=x.device)


def tensor_in_place(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x.mul_(model.host["value"]).add_(1)


def detached(model: Any, x: torch.Tensor) -> torch.Tensor:
    other = x * 2
    return x * (other.detach() if model.host["value"] else other)


def shape(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x.view(model.host["value"]).flatten() * 2


def dropped(model: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5, training=model.host["value"])


def order(model: Any, x: torch.Tensor) -> torch.Tensor:
    parts = x.split(1, dim=1)
    return parts[0] - parts[1] if model.host["value"] else parts[1] - parts[0]


def run(folder: Path, act: Any, value: Any) -> list[torch.Tensor]:
    """Returns the outputs and the weights after one step of training."""
    torch.manual_seed(3)
    opts = poptorch.Options().showCompilationProgressBar(False).randomSeed(1)
    opts.enableExecutableCaching(str(folder))
    model = Steered(act, value=value)
    training = poptorch.trainingModel(
        model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    )
    return [*training(X), *model.state_dict().values()]


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("act", "one", "other"),
    [
        (times_number, 2.0, 3.0),
        (times_number, torch.tensor(2.0), torch.tensor(3.0)),
        (branch, True, False),
        (loop, 1, 2),
        (tensor_of_host, [1.0, 2.0, 3.0], [1.0, 2.0, 4.0]),
        (tensor_in_place, 2.0, 3.0),
        (detached, False, True),
        (shape, (1, 3), (3, 1)),
        (dropped, True, False),
        (order, True, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_the_host_has_when_it_changes_then_another_program(
    act: Any, one: Any, other: Any, tmp_path: Path
) -> None:
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    first, second = run(shared, act, one), run(shared, act, other)
    assert len(list(shared.glob("*.executable"))) == 2
    assert_same(second, run(alone, act, other))
    assert_same(run(shared, act, one), first)
    assert len(list(shared.glob("*.executable"))) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.half(),
        lambda model: model.eval(),
        lambda model: model[1].register_forward_hook(lambda module, args, y: y * 2),
        lambda model: setattr(model[1], "eps", 1e-2),
        lambda model: setattr(model[1], "momentum", 0.5),
    ],
    ids=["half", "eval", "hook", "eps", "momentum"],
)
def test_module_when_changed_then_another_program(change: Any, tmp_path: Path) -> None:
    for is_changed in (False, True):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
        if is_changed:
            change(model)
        opts = poptorch.Options().showCompilationProgressBar(False)
        opts.enableExecutableCaching(str(tmp_path))
        executor = poptorch.inferenceModel(model, opts)
        x = torch.ones(4, 3, dtype=model[0].weight.dtype)
        executor.compile(x)
        executor.destroy()
    assert len(list(tmp_path.glob("*.executable"))) == 2
