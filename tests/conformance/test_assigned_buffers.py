"""Buffers that forward assigns keep the assigned value, as in a loop of plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Buffers that forward assigns", fidelity="accepted")

ROWS = 3


class Neuron(nn.Module):
    """A model with a state of some shape, which the `forward` of its subclasses updates."""

    def __init__(self, shape=(ROWS, 2)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mem", torch.zeros(shape))
        self.register_buffer("other", torch.ones(2))


class Kept(Neuron):
    def forward(self, x):
        self.mem = 0.9 * self.mem + self.linear(x).detach()
        return self.mem * 1


class Shaped(Neuron):
    """A neuron whose state has no elements at first, as in snnTorch."""

    def __init__(self) -> None:
        super().__init__((0,))

    def forward(self, x):
        if self.mem.shape != x.shape:
            self.mem = torch.zeros_like(x)
        self.mem = 0.9 * self.mem + self.linear(x).detach()
        return self.mem * 1


class Reset(Neuron):
    """A neuron that resets its state in each call."""

    def __init__(self) -> None:
        super().__init__((0,))

    def forward(self, x):
        self.mem = torch.zeros(2)
        for row in x:
            self.mem = 0.5 * self.mem + self.linear(row)
        return x + self.mem


class Overwritten(Neuron):
    def __init__(self) -> None:
        super().__init__((0,))

    def forward(self, x):
        self.mem = self.linear(x)
        return self.mem * 2


class Swapped(Neuron):
    def __init__(self) -> None:
        super().__init__((2,))

    def forward(self, x):
        self.mem, self.other = self.other, self.mem
        return x + self.mem - 2 * self.other


class Counted(Neuron):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps = self.steps + 1
        return x * self.steps


class Aliased(Neuron):
    def __init__(self) -> None:
        super().__init__((2, 2))

    def forward(self, x):
        self.mem = torch.stack([self.other, self.mem[0]])
        self.other = self.mem[1]
        return x + self.mem[1] + self.other


class SetToNone(Neuron):
    """Removes its state and begins anew in each call."""

    def forward(self, x):
        self.mem = None
        for row in x:
            if self.mem is None:
                self.mem = torch.zeros_like(row)
            self.mem = 0.5 * self.mem + self.linear(row)
        return x + self.mem


class MadeAnew(SetToNone):
    """Has no state before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.mem = None


class MadeOnce(Neuron):
    def __init__(self) -> None:
        super().__init__()
        self.mem = None

    def forward(self, x):
        if self.mem is None:
            self.mem = torch.ones_like(x)
        self.mem = 0.5 * self.mem + self.linear(x).detach()
        return x + self.mem


class ReturnsOld(Neuron):
    def forward(self, x):
        old = self.mem
        self.mem = old + self.linear(x).detach()
        return old


def options(num_micro_batches: int) -> poptorch.Options:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(num_micro_batches).outputMode(poptorch.OutputMode.All)
    return options


KINDS = [
    Kept,
    Shaped,
    Reset,
    Overwritten,
    Swapped,
    Aliased,
    Counted,
    SetToNone,
    MadeAnew,
    MadeOnce,
    ReturnsOld,
]


@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_assigned_buffer_when_calls_follow_then_values_of_a_plain_loop(kind, num_micro_batches):
    model = kind()
    plain = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model, options(num_micro_batches))
    for _ in range(3):
        x = torch.randn(ROWS * num_micro_batches, 2)
        expected = torch.cat([plain(rows).detach() for rows in x.split(ROWS)])
        torch.testing.assert_close(executor(x), expected)
    executor.copyWeightsToHost()
    torch.testing.assert_close(model.mem, plain.mem.detach())
    torch.testing.assert_close(model.other, plain.other.detach())


class Trained(Shaped):
    def forward(self, x):
        result = super().forward(x) + self.linear(x)
        return result, poptorch.identity_loss(result.square().mean(), reduction="none")


class Multiplied(Kept):
    """Its gradient needs the value before the assignment."""

    def forward(self, x):
        result = self.linear(x) * self.mem
        self.mem = 3 * self.mem + x
        return result, poptorch.identity_loss((result * self.mem).mean(), reduction="none")


@pytest.mark.parametrize("kind", [Trained, Multiplied])
def test_assigned_buffer_when_trained_then_values_of_a_plain_loop(kind) -> None:
    model = kind()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    executor = poptorch.trainingModel(
        model, options(1), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    for _ in range(3):
        x = torch.randn(ROWS, 2)
        optimizer.zero_grad()
        result, loss = plain(x)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(executor(x), (result.detach(), loss.detach()))
    torch.testing.assert_close(model.mem, plain.mem)
    torch.testing.assert_close(model.linear.weight.data, plain.linear.weight.data)


class ChangesInput(Neuron):
    """A model whose first call computes something that later calls do not compute."""

    def __init__(self) -> None:
        super().__init__((0,))

    def forward(self, x):
        if self.mem.shape != x.shape:
            self.mem = torch.zeros_like(x)
            x = x * 2
        self.mem = 0.9 * self.mem + x
        return self.mem * 1


class Grown(Neuron):
    def __init__(self) -> None:
        super().__init__((1,))

    def forward(self, x):
        self.mem = torch.cat([self.mem, self.mem])
        return x + self.mem.sum()


class MadeOtherwise(Neuron):
    """Its first call uses another value than later calls."""

    def __init__(self) -> None:
        super().__init__()
        self.mem = None

    def forward(self, x):
        if self.mem is None:
            self.mem = torch.ones_like(x)
        else:
            self.mem = self.mem * 2
        return x + self.mem


@pytest.mark.parametrize("kind", [ChangesInput, Grown, MadeOtherwise])
def test_assigned_buffer_when_later_calls_would_differ_then_error_and_the_buffer_stays(kind):
    model = kind()
    before = model.mem
    with pytest.raises(
        poptorch.Error, match="Buffer mem (gets a value of another shape|is first made) in forward"
    ):
        poptorch.inferenceModel(model, options(1))(torch.ones(ROWS, 2))
    assert model.mem is before


def test_assigned_buffer_in_strict_mode_then_error(monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    with pytest.raises(poptorch.Error, match="Buffer mem is reassigned within the model"):
        poptorch.inferenceModel(Kept(), options(1))(torch.ones(ROWS, 2))
