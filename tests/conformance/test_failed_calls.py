"""Calls that fail after some updates: the completed updates count, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.small_models import Function, options

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Calls that fail half way", fidelity="exact")

START = 0.5
LR = 0.125


def one_ipu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return poptorch.identity_loss(w * x, "sum")


def two_ipus(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with poptorch.Block("a", ipu_id=0):
        x = x * w
    with poptorch.Block("b", ipu_id=1):
        return poptorch.identity_loss(x, "sum")


def picky(x: torch.Tensor) -> torch.Tensor:
    if x.item() == 3:
        raise KeyError("three")
    return x


def host_layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return poptorch.identity_loss(w * poptorch.CPU(picky, "picky")(x), "sum")


INF = float("inf")
# For each case: the function, the rows of the third update, and the error. The other updates have
# the rows 1, 2 and 4.
CASES = {
    "floating point": (one_ipu, [INF], "floating-point exception"),
    "floating point in a pipeline": (two_ipus, [3.0, INF, 3.0], "floating-point exception"),
    "host layer": (host_layer, [3.0], "three"),
}


def failing(name: str, make_optimizer: Callable):
    """Returns model, executor and optimiser after a call whose third update of four fails."""
    function, third, message = CASES[name]
    model = Function(function, torch.tensor([START]))
    optimizer = make_optimizer(model.parameters())
    opts = options(iterations=4, accumulation=len(third))
    opts.Precision.enableFloatingPointExceptions(True)
    executor = poptorch.trainingModel(model, opts, optimizer)
    rows = [[1.0] * len(third), [2.0] * len(third), third, [4.0] * len(third)]
    with pytest.raises(poptorch.Error, match=message):
        executor(torch.tensor(rows).flatten())
    return model, executor, optimizer


@pytest.mark.parametrize("name", CASES)
def test_weights_when_a_later_iteration_fails_then_are_those_the_device_has(name: str) -> None:
    model, executor, _ = failing(name, lambda p: poptorch.optim.SGD(p, lr=LR))
    assert model.weights[0].item() == START - LR * (1 + 2)  # The gradients are the rows.
    assert model.state_dict()["weights.0"].item() == START - LR * (1 + 2)
    assert executor.copyWeightsToHostIfNeeded() is False


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_state_when_a_later_iteration_fails_then_agrees_with_the_weights(
    name: str, kind: str
) -> None:
    """Two updates by torch.optim result in the same state and the same weight."""
    arguments = {"Adam": {"lr": 0.1}, "SGD": {"lr": 0.1, "momentum": 0.9}}[kind]
    model, executor, optimizer = failing(
        name, lambda p: getattr(poptorch.optim, kind)(p, **arguments)
    )
    plain = torch.nn.Parameter(torch.tensor([START]))
    reference = getattr(torch.optim, kind)([plain], **arguments)
    for gradient in (1.0, 2.0):
        plain.grad = torch.tensor([gradient])
        reference.step()
    state = optimizer.state_dict()["ipu_state"]
    expected = reference.state[plain]
    first = expected["exp_avg" if kind == "Adam" else "momentum_buffer"]
    torch.testing.assert_close(state["Accl1___weights.0"], first)
    if kind == "Adam":
        assert state["Step___weights.0"].item() == expected["step"].item() == 2
    torch.testing.assert_close(model.weights[0].detach(), plain.detach())


@pytest.mark.parametrize("name", CASES)
def test_next_call_when_one_failed_then_goes_on_from_there(name: str) -> None:
    arguments = {"lr": 0.1, "momentum": 0.9}
    model, executor, _ = failing(name, lambda p: poptorch.optim.SGD(p, **arguments))
    more = [0.5, 1.0, 4.0, 1.0]
    executor(torch.tensor(more).repeat_interleave(len(CASES[name][1])))
    executor.destroy()
    plain = torch.nn.Parameter(torch.tensor([START]))
    reference = torch.optim.SGD([plain], **arguments)
    for gradient in [1.0, 2.0, *more]:
        plain.grad = torch.tensor([gradient])
        reference.step()
    torch.testing.assert_close(model.weights[0].detach(), plain.detach())
