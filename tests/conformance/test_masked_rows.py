"""Rows that a mask of data selects, and assignments to them: torch.where, with its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.wrapped_functions import options, run, wrapped
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Rows of a mask", fidelity="exact")

A = torch.tensor([[1.0, -2.0], [0.5, 4.0], [-1.0, 0.0]])
B = torch.tensor([[0.5, 1.0], [-3.0, 2.0], [2.0, -0.25]])


def copied(a, b):
    mask, result = b > 0, torch.zeros_like(a)
    result[mask] = (a * b)[mask]
    return result


def rows(a, b):
    mask, result = b[:, 0] > 0, a * 2
    result[mask] = b[mask]
    return result


def of_elements(a, b):
    mask, result = b > 0, a * 3
    result[mask] = (a[mask] - b[mask]).abs() * 2 + 1 / b[mask]
    return result


def singular(a, b):
    """A function without a finite value or derivative where the mask is false."""
    mask, result = b > 0, a * 3
    result[mask] = torch.log(b[mask]) + b[mask].sqrt() + (1 - b[mask] * 0).log()
    return result


def cast(a, b):
    mask, result = b > 0, a * 3
    result[mask] = (-b[mask].double()).to(a.dtype).clamp(min=-1)
    return result


def layer(a, b):
    """A linear layer, and then a function without a value or derivative at the other places."""
    mask, result = b[:, 0] > 0, a * 2
    result[mask] = 1 / (F.linear(b[mask], a[:2]) - 1)
    return result


def embedded(a, b):
    mask, result = b[:, 0] > 0, a * 2
    result[mask] = F.embedding((b[:, 0] > 1).long()[mask], a)
    return result


FUNCTIONS = [copied, rows, of_elements, singular, cast, layer, embedded]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_of_a_mask_when_assigned_to_its_places_then_values_of_pytorch(function) -> None:
    executor = wrapped(lambda self, a, b: function(a, b))
    for a, b in ((A, B), (B, A), (A, -B.abs())):
        torch.testing.assert_close(executor(a, b), function(a.clone(), b.clone()))


class Model(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = nn.Parameter(A.clone()), nn.Parameter(B.clone())

    def forward(self, scale):
        result = self.function(self.a * scale, self.b * scale)
        return poptorch.identity_loss(result.square().sum(), reduction="none")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_of_a_mask_when_trained_then_gradients_of_pytorch(function) -> None:
    model, plain = Model(function), Model(function)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    executor = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.01)
    )
    for _ in range(2):
        optimizer.zero_grad()
        loss = plain(torch.ones(1))
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(executor(torch.ones(1)), loss.detach())
    torch.testing.assert_close(model.a.data, plain.a.data)
    torch.testing.assert_close(model.b.data, plain.b.data)


def other_mask(a, b):
    result = a * 1
    result[b > 0] = a[b > 1]
    return result


def changed_mask(a, b):
    mask, result = b > 0, a * 1
    selected = a[mask]
    mask.logical_not_()
    result[mask] = selected
    return result


def other_rows(a, b):
    mask, result = b[:, 0] > 0, torch.zeros(3, 1)
    result[mask] = a[mask]
    return result


REFUSED = {
    "other mask": other_mask,
    "changed mask": changed_mask,
    "other rows": other_rows,
    "order": lambda a, b: a[b > 0].sort()[0],
    "sum over rows": lambda a, b: a[b > 0].cumsum(0).sum(),
    "joined": lambda a, b: torch.cat([a[b > 0], b.flatten()]),
    "length": lambda a, b: a * len(a[b > 0]),
    "size": lambda a, b: a * a[b > 0].numel(),
    "first": lambda a, b: a * a[b > 0][0],
    "with a tensor": lambda a, b: a[b > 0] + torch.ones(3),
    "in place": lambda a, b: a[b > 0].add_(1),
    "condition": lambda a, b: a if a[b > 0] else b,
    "returned": lambda a, b: (a, [a[b > 0]]),
    "product": lambda a, b: a[b[:, 0] > 0] @ a.T,
    "weights": lambda a, b: F.linear(a, a[b[:, 0] > 0]),
    "elements": lambda a, b: F.linear(a[b > 0], a.new_ones(1, 4)),
    "renormalised": lambda a, b: F.embedding((b > 0).long()[b > 0], a, max_norm=1.0),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_rows_of_a_mask_when_their_number_matters_then_refused_with_the_line(function) -> None:
    with pytest.raises(poptorch.Error, match="test_masked_rows.py.* whose shape depends on data"):
        run(lambda self, a, b: function(a, b), A, B)
