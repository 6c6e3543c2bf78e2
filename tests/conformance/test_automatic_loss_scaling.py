"""A loss scale that the device doubles and halves (spec semantics 5.2, api 8.2 and 13.3)."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from helpers import Batch, Setting, plain_step
from models import FAMILIES
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Automatic loss scaling", fidelity="modelled")

FACTOR, TOTAL = "lossScaleUpdateFactor", "finalLossScale"


def options(setting: Setting | None = None, **settings: float) -> poptorch.Options:
    """Returns options with an automatic loss scale whose course the host can see."""
    opts = (setting or Setting("sharded")).options()
    opts.Training.setAutomaticLossScaling(True)
    for name, value in settings.items():
        opts._Popart.set(f"automaticLossScalingSettings.{name}", value)
    for name in (FACTOR, TOTAL):
        opts.anchorTensor(name, name, poptorch.OutputMode.Final)
    return opts


class OneWeight(nn.Module):
    """Has `size` as the gradient of each of its weights, whatever these are."""

    def __init__(self, size: float, dtype: torch.dtype = torch.float32, count: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, dtype=dtype))
        self.size = size

    def forward(self, x: torch.Tensor):
        loss = poptorch.identity_loss((self.weight * x).sum() * self.size, "none")
        return loss, loss


def course(training: Any, num_calls: int, x: torch.Tensor) -> list[tuple[float, float]]:
    """Returns for each call the scale that was in use and the factor that came out."""
    found = []
    for _ in range(num_calls):
        training(x)
        found.append(
            (training.getAnchoredTensor(TOTAL).item(), training.getAnchoredTensor(FACTOR).item())
        )
    return found


def train_one_weight(
    model: OneWeight, opts: poptorch.Options, num_calls: int, **arguments: Any
) -> list[tuple[float, float]]:
    arguments = {"lr": 1.0, **arguments}
    optimizer = poptorch.optim.SGD(model.parameters(), use_combined_accum=False, **arguments)
    training = poptorch.trainingModel(model, opts, optimizer)
    found = course(training, num_calls, torch.ones(1, 4, dtype=model.weight.dtype))
    training.destroy()
    return found


def expected_weights(model: nn.Module, make: Any, batches: list[Batch], setting: Setting, limit):
    optimizer = make(model.parameters(), torch.optim)
    for batch in batches:
        plain_step(model, optimizer, batch, setting, limit)
    return model.state_dict()


RULES: dict[str, tuple[dict[str, Any], float]] = {
    "SGD": ({"lr": 0.05, "momentum": 0.9}, float("inf")),
    "Adam": ({"lr": 0.01}, float("inf")),
    "AdamW": ({"lr": 0.01}, 0.4),
    "RMSprop": ({"lr": 0.01}, float("inf")),
}
CASES = [
    *itertools.product(["SGD"], [1, 2, 4], [1, 4], [1, 2]),
    *itertools.product(["Adam", "AdamW", "RMSprop"], [1, 4], [4], [2]),
]


@pytest.mark.parametrize(("name", "stages", "accumulation", "replicas"), CASES)
def test_updates_when_the_scale_moves_then_equal_plain_pytorch(
    name: str, stages: int, accumulation: int, replicas: int
) -> None:
    arguments, limit = RULES[name]

    def make(parameters, module):
        own = {"loss_scaling": 2.0} if module is poptorch.optim else {}
        if limit < float("inf") and own:
            own["max_grad_norm"] = limit * own["loss_scaling"]
        return getattr(module, name)(parameters, **arguments, **own)

    setting = Setting("sharded", accumulation, iterations=2, replicas=replicas)
    model = FAMILIES["mlp"].make(stages)
    batches = [FAMILIES["mlp"].batch(2 * setting.num_micro_batches) for _ in range(3)]
    expected = expected_weights(copy.deepcopy(model), make, batches, setting, limit)
    training = poptorch.trainingModel(
        model, options(setting), make(model.parameters(), poptorch.optim)
    )
    for batch in batches:
        training(*batch)
    assert training.getAnchoredTensor(FACTOR).unique().tolist() == [2.0**6]
    training.destroy()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
