"""Operations that change no number are removed for the host, without changing a bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

YES, SOME = torch.tensor(True), torch.tensor([True, False, True])
SPECIAL = torch.tensor([[-0.0, 1.5, torch.inf], [torch.nan, -2.0, 0.0]])


class Function(nn.Module):
    """Computes a test's function of a floating-point input and an integer input."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return self.function(x, count)


def compared(function: Callable[..., torch.Tensor]) -> str:
    """Compares the bits with those of PyTorch, and returns the program."""
    inference = poptorch.inferenceModel(Function(function), poptorch.Options())
    count = torch.tensor([[1, 2, 3], [0, -1, 7]], dtype=torch.int32)
    found, expected = inference(SPECIAL, count), function(SPECIAL, count)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), expected.signbit())
    return inference._executable.program.text()


LEFT_OUT = {
    "mul.Tensor": lambda x, count: (x * 1).sin(),
    "div.Tensor": lambda x, count: (x / 1.0).sin(),
    "sub.Tensor": lambda x, count: (x - 0).sin(),
    "expand": lambda x, count: x.expand(2, 3).sin(),
    "view": lambda x, count: x.view(2, 3).sin(),
    "where.self": lambda x, count: torch.where(YES.expand(2, 3), x, x.cos()).sin(),
    "zeros_like": lambda x, count: x + torch.zeros_like(x.sum()) * 3,
    "full_like": lambda x, count: x * torch.full_like(x.nansum(), 2.5),
}


@pytest.mark.parametrize("operator", LEFT_OUT)
def test_operation_that_changes_no_number_then_is_left_out(operator: str) -> None:
    assert f"aten::{operator}(" not in compared(LEFT_OUT[operator])


KEPT = {
    "add.Tensor": lambda x, count: x + 0,  # -0 becomes 0.
    "mul.Tensor": lambda x, count: count * 1.0,
    "div.Tensor": lambda x, count: count / 1,
    "sub.Tensor": lambda x, count: x - 1,
    "expand": lambda x, count: x.expand(4, 2, 3).sin(),
    "where.self": lambda x, count: torch.where(SOME, x, x.cos()),
    "full_like": lambda x, count: torch.full_like(x, 2.0) * x,
}


@pytest.mark.parametrize("operator", KEPT)
def test_operation_that_changes_a_number_a_type_or_a_shape_then_stays(operator: str) -> None:
    assert f"aten::{operator}(" in compared(KEPT[operator])


def test_loss_divided_by_a_number_that_may_be_zero_then_begins_backward_with_a_constant() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = torch.tensor(x.shape).prod().float()
            total = self.layer(x).square().sum()
            safe = torch.where(count == 0, torch.ones_like(count), count)
            mean = torch.where(count == 0, torch.zeros_like(total), total / safe)
            return poptorch.identity_loss(mean * 1, "none")

    model, plain, x = Loss(), Loss(), torch.randn(5, 4)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(x).backward()
    optimizer.step()
    training = poptorch.trainingModel(
        model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    loss = training(x)
    torch.testing.assert_close(loss, Loss()(x).detach())
    torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()))
    text = training._executable.program.text()
    for operator in ("where.self", "full_like"):
        assert f"aten::{operator}(" not in text.partition("prepare update")[0], operator
    training.destroy()
