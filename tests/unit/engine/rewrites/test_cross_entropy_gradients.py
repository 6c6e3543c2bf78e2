"""The gradient of a cross entropy for its scores has the bits of PyTorch's two operators."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rewrites import leave_out
from torch import nn
from torch.nn import functional as F

import poptorch_emu as poptorch
from poptorch_emu.engine.rewrites import cross_entropy
from poptorch_emu.engine.rewrites.cross_entropy import fuse_loss_gradients

BATCH, WIDTH, CLASSES, ACCUMULATION = 6, 5, 7, 4
MEAN, SUM = 1, 2
BOTH, ALONE = "::cross_entropy_backward(", "::nll_loss_backward("

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_pytorch(
    gradient: torch.Tensor,
    logs: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Returns the gradient of the scores, in two steps."""
    aten = torch.ops.aten
    of_logs = aten.nll_loss_backward(
        gradient, logs, target, None, reduction, ignore_index, total_weight
    )
    return aten._log_softmax_backward_data(of_logs, logs, 1, torch.float32)


@settings(max_examples=60)
@given(
    st.sampled_from([0, 1, 2, 7, 64, 65]),
    st.sampled_from([1, 2, 10, 16, 17, 1000, 5000, 40000]),
    st.sampled_from([MEAN, SUM]),
    st.integers(-1, 3),
    st.integers(0, 999),
)
def test_gradient_of_any_size_then_has_the_bits_of_pytorch(
    rows: int, classes: int, reduction: int, ignored: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logs = (3 * torch.randn(rows, classes, generator=generator)).log_softmax(1)
    target = torch.randint(classes, (rows,), generator=generator)
    weight = (target != ignored).sum().float()
    arguments = (torch.tensor(0.3), logs, target, reduction, ignored, weight)
    found = torch.ops.poptorch_emu.cross_entropy_backward(*arguments)
    assert torch.equal(found, by_pytorch(*arguments))


def test_gradient_when_scores_are_not_finite_then_is_that_of_pytorch() -> None:
    logs = torch.randn(4, 20).log_softmax(1)
    logs[1, 3], logs[2, 7] = float("nan"), -float("inf")
    target = torch.tensor([3, 0, 7, 1])
    arguments = (torch.tensor(1.0), logs, target, MEAN, 1, torch.tensor(3.0))
    found = torch.ops.poptorch_emu.cross_entropy_backward(*arguments)
    torch.testing.assert_close(found, by_pytorch(*arguments), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wrong", [-1, 20])
def test_gradient_when_there_is_no_such_class_then_says_so(wrong: int) -> None:
    logs, target = torch.randn(4, 20).log_softmax(1), torch.tensor([3, wrong, 7, 1])
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds for 20 classes"):
        torch.ops.poptorch_emu.cross_entropy_backward(
            torch.tensor(1.0), logs, target, MEAN, -100, torch.tensor(4.0)
        )


class Classifier(nn.Module):
    """Scores of classes, with a loss, which may be on a stage of its own."""

    def __init__(self, loss: Loss, *, is_split: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(WIDTH, 12), nn.Linear(12, CLASSES)
        self.loss, self.is_split = loss, is_split

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logs = F.log_softmax(self.head(torch.tanh(self.first(x))), 1)
        if self.is_split:
            poptorch.Block.useAutoId()
            with poptorch.Block("loss", ipu_id=1):
                return logs, poptorch.identity_loss(self.loss(logs, target), "none")
        return logs, poptorch.identity_loss(self.loss(logs, target), "none")


def of_each_row(logs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(logs, target, reduction="none").square().mean()


def with_others(logs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(logs, target) + 0.1 * logs.exp().square().mean()


# For each case: the loss, and whether one operation computes its gradient.
LOSSES: dict[str, tuple[Loss, bool]] = {
    "mean": (F.nll_loss, True),
    "sum": (lambda logs, target: F.nll_loss(logs, target, reduction="sum") / 10, True),
    "ignored": (lambda logs, target: F.nll_loss(logs, target, ignore_index=3), True),
    "weights": (
        lambda logs, target: F.nll_loss(logs, target, weight=torch.linspace(0.5, 2, CLASSES)),
        False,
    ),
    "of each row": (of_each_row, False),
    "read by others": (with_others, False),
}


def trained(model: Classifier) -> tuple[list[torch.Tensor], str]:
    """Returns outputs and weights after an update, and the text of the program."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
    outputs = training(*batch())
    text = training._executable.program.text()
    training.destroy()
    return [*outputs, *(weight.detach() for weight in model.parameters())], text


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = ACCUMULATION * BATCH
    x = torch.randn(rows, WIDTH, generator=generator)
    return x, torch.randint(CLASSES, (rows,), generator=generator)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_training_then_has_the_bits_of_the_two_operators(
    name: str, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "_FEWEST_NUMBERS", 1)
    loss, is_at_once = LOSSES[name]
    model = Classifier(loss, is_split=is_split)
    found, text = trained(copy.deepcopy(model))
    assert (BOTH in text) is is_at_once
    leave_out(monkeypatch, fuse_loss_gradients)
    expected, text = trained(model)
    assert BOTH not in text
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_training_when_there_are_few_scores_then_stays_as_it_is() -> None:
    _, text = trained(Classifier(F.nll_loss))
    assert BOTH not in text and ALONE in text
