"""Bad input changes nothing: weights, optimiser, and the effect of a later correct call."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("After bad input", fidelity="exact")

ROWS = 6  # Two updates of three micro-batches.


class Switched(nn.Module):
    """A regression in two blocks; `fault` names the fault that it has, if any."""

    fault = ""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        with poptorch.Block("unknown" if self.fault == "block" else "first"):
            x = self.first(x).tanh()
            if self.fault == "control flow" and x.sum() > 0:
                x = x + 1
        with poptorch.Block("second"):
            x = self.second(x)
            return x if self.fault == "loss" else (x, nn.functional.mse_loss(x, y))


Batch = tuple[torch.Tensor, torch.Tensor]
Trainer = tuple[Switched, poptorch.optim.Optimizer, poptorch.PoplarExecutor]


def batches(count: int) -> list[Batch]:
    return [(torch.randn(ROWS, 4), torch.randn(ROWS, 4)) for _ in range(count)]


def trainer(model: Switched) -> Trainer:
    options = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    options.showCompilationProgressBar(False)
    options.Training.gradientAccumulation(3)
    stages = [poptorch.Stage(name).ipu(ipu) for ipu, name in enumerate(("first", "second"))]
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, poptorch.trainingModel(model, options, optimizer)


def switched(fault: str) -> Callable[[Trainer, Batch], None]:
    """Returns a call of a model with that fault, compiled anew if it was compiled before."""

    def call(trained: Trainer, batch: Batch) -> None:
        trained[2].destroy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Switched, "fault", fault)
            trained[2](*batch)

    return call


def with_inputs(change: Callable[[Batch], Batch]) -> Callable[[Trainer, Batch], None]:
    """Returns a call with other inputs."""
    return lambda trained, batch: trained[2](*change(batch))


# For each bad call: the call, its error, and whether it also fails before compilation.
BAD = {
    "batch": (with_inputs(lambda b: (b[0][:5], b[1][:5])), "must be a multiple of|mismatch", True),
    "shape": (with_inputs(lambda b: (b[0][:, :3], b[1])), "Shape mismatch for x", False),
    "dtype": (with_inputs(lambda b: (b[0].half(), b[1])), "Data type mismatch for x", False),
    "block": (switched("block"), "Unknown Block 'unknown'", True),
    "loss": (switched("loss"), "Couldn't find a loss in graph!", True),
    "control flow": (switched("control flow"), "only supported in eager mode", True),
}
CASES = [
    (name, num_before)
    for name, (_, _, is_bad_at_once) in BAD.items()
    for num_before in (0, 2)
    if num_before or is_bad_at_once
]


def assert_same(left: object, right: object) -> None:
    """Compares nested dicts and lists of tensors and numbers, bit for bit."""
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


@pytest.mark.parametrize(("name", "num_before"), CASES)
def test_bad_call_then_changes_nothing_and_training_goes_on(name: str, num_before: int) -> None:
    call, message, _ = BAD[name]
    untouched = trainer(Switched())
    trained = trainer(copy.deepcopy(untouched[0]))
    data = batches(num_before + 2)
    for _, _, training in (untouched, trained):
        for batch in data[:num_before]:
            training(*batch)
    weights = copy.deepcopy(trained[0].state_dict())
    state = copy.deepcopy(trained[1].state_dict())

    with pytest.raises((poptorch.Error, AssertionError), match=message):
        call(trained, data[0])

    assert_same(trained[0].state_dict(), weights)
    assert_same(trained[1].state_dict(), state)
    for batch in data[num_before:]:
        assert_same(trained[2](*batch), untouched[2](*batch))
    assert_same(trained[0].state_dict(), untouched[0].state_dict())
    assert_same(trained[1].state_dict(), untouched[1].state_dict())
