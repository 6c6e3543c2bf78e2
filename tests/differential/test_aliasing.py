"""Views, in-place operations and shared tensors behave as in eager PyTorch (semantics 15)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor):
        return self.function(*tensors)


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def changed(change):
    """Returns a function that changes its argument and reads it, also by an earlier view."""

    def function(x):
        before = x[0]
        change(x)
        return x, before * 1, x.sum()

    return function


def fill_diagonal(x):
    x.diagonal().fill_(7)


def assign(index, value):
    def change(x):
        x[index] = value

    return change


def add_to_view(make):
    def change(x):
        view = make(x)
        view += 1

    return change


CHANGES = {
    "slice": add_to_view(lambda x: x[1:3]),
    "step": add_to_view(lambda x: x[::2, 1::2]),
    "select": add_to_view(lambda x: x[2]),
    "transpose": add_to_view(lambda x: x.t()[1]),
    "view": add_to_view(lambda x: x.view(-1)[3:9]),
    "view of view": add_to_view(lambda x: x[1:].unsqueeze(0).squeeze(0)[:, 2]),
    "unbind": add_to_view(lambda x: x.unbind(1)[3]),
    "chunk": add_to_view(lambda x: x.chunk(2)[1]),
    "narrow": add_to_view(lambda x: x.narrow(1, 1, 2)),
    "diagonal": fill_diagonal,
    "ellipsis": assign((..., 0), 5.0),
    "integers": assign(([0, 2], [1, 1]), -1.0),
    "fill row": assign(1, 0.0),
    "mask": lambda x: x.masked_fill_(x > 0, -1.0),
    "index mask": lambda x: x.__setitem__(x > 0, 3.0),
    "copy": lambda x: x.copy_(x.flip(0)),
    "overlapping rows": lambda x: x[1:].copy_(x[:-1].clone()),
    "scatter": lambda x: x.scatter_add_(0, torch.zeros(1, 4, dtype=torch.int64), x[1:2].clone()),
    "index_add": lambda x: x.index_add_(0, torch.tensor([1, 1]), x[:2].clone()),
    "out": lambda x: torch.add(x, 1, out=x),
}


@pytest.mark.feature("In-place operations", fidelity="exact")
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_input_that_is_changed_through_a_view_comes_back_changed(name, layout):
    torch.manual_seed(1)
    mine = torch.randn(4, 4)
    mine = mine.t() if layout == "transposed" else mine
    # PopTorch's device sees contiguous inputs.
    plain = mine.clone(memory_format=torch.contiguous_format)
    actual = poptorch.inferenceModel(Calls(changed(CHANGES[name])), options())(mine)
    expected = changed(CHANGES[name])(plain)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(mine, plain, check_stride=False)


@pytest.mark.parametrize("name", CHANGES)
def test_an_intermediate_that_is_changed_through_a_view_keeps_the_input(name):
    torch.manual_seed(1)
    x = torch.randn(4, 4)
    untouched = x.clone()
    function = changed(CHANGES[name])
    actual = poptorch.inferenceModel(Calls(lambda t: function(t * 1)), options())(x)
    torch.testing.assert_close(actual, function(x * 1))
    assert torch.equal(x, untouched)


SHARED = {
    "input twice": lambda a, b: (a, a, a + b),
    "view of input": lambda a, b: (a.t(), a[1:], b.expand(3, 4, 4)),
    "unused": lambda a, b: b,
    "same value twice": lambda a, b: (lambda s: (s, s.view(-1), s))(a * b),
}


@pytest.mark.parametrize("name", SHARED)
def test_outputs_that_share_memory_in_eager_have_the_same_values(name):
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    actual = poptorch.inferenceModel(Calls(SHARED[name]), options())(a, b)
    torch.testing.assert_close(actual, SHARED[name](a, b), check_stride=False)


def test_one_tensor_as_two_arguments_is_two_inputs():
    x = torch.randn(4, 4)
    actual = poptorch.inferenceModel(Calls(lambda a, b: a - 2 * b), options())(x, x)
    torch.testing.assert_close(actual, -x)


class Tied(nn.Module):
    """One weight in three roles, stored transposed; a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.first.weight = nn.Parameter(torch.randn(4, 4).t())
        self.second.weight = self.first.weight
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor):
        y = self.second(torch.tanh(self.first(x))) @ self.first.weight
        self.total += y.detach().sum(0)
        self.total[::2].mul_(0.5)
        return poptorch.identity_loss(y.square().mean(), "none")


def test_tied_and_transposed_weights_and_a_changed_buffer_train_as_in_eager():
    torch.manual_seed(2)
    plain = Tied()
    emulated = copy.deepcopy(plain)
    x = torch.randn(3, 4)
    optimizer = poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    training = poptorch.trainingModel(emulated, options(), optimizer)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        training(x)
        reference.zero_grad()
        plain(x).backward()
        reference.step()
    training.destroy()
    torch.testing.assert_close(emulated.first.weight, plain.first.weight)
    torch.testing.assert_close(emulated.total, plain.total)
    assert emulated.second.weight is emulated.first.weight


class SharedMemory(nn.Module):
    """Views of one storage, and a buffer in the memory of a parameter."""

    def __init__(self, aliases: bool) -> None:
        super().__init__()
        flat = torch.randn(20)
        self.weight = nn.Parameter(flat[:16].view(4, 4))
        self.bias = nn.Parameter(flat[16:])
        self.empty = nn.Parameter(flat[:0])
        self.register_buffer("copy", self.weight.t().detach() if aliases else torch.ones(4))

    def forward(self, x: torch.Tensor):
        y = nn.functional.linear(x, self.weight, self.bias) * self.copy.sum() + self.empty.sum()
        return poptorch.identity_loss(y.square().mean(), "none")


@pytest.mark.parametrize("aliases", [True, False])
def test_parameter_in_the_memory_of_another_tensor_then_a_warning_names_both(aliases, caplog):
    model = SharedMemory(aliases)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    poptorch.trainingModel(model, options(), optimizer)(torch.randn(3, 4))
    assert ("weight and copy share memory on the host" in caplog.text) == aliases
    assert ("share memory" in caplog.text) == aliases
