"""Gradients of averaged embeddings are divided before they are expanded, with the same bits."""

from __future__ import annotations

import pytest
import torch
from support.rewrites import leave_out
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.rewrites.embedding import divide_before_expanding

WINDOWS, ACCUMULATION, ROWS, LENGTH, WORDS, WIDTH = 2, 3, 4, 6, 20, 8


class Averaged(nn.Module):
    """Pools the rows of an embedding, as text classifiers do."""

    def __init__(self, pooling: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pooling = pooling
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=3)
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        if self.pooling == "twice":
            x = x + torch.tanh(x)
        x = x.sum(dim=1) / LENGTH if self.pooling == "sum" else x.mean(dim=1)
        return nn.functional.cross_entropy(self.last(x), labels)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    count = WINDOWS * ACCUMULATION * ROWS
    words = torch.randint(WORDS, (count, LENGTH), generator=generator)
    return words, torch.randint(5, (count,), generator=generator)


def plain(model: nn.Module) -> list[torch.Tensor]:
    """Returns the weights after the same updates in plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pairs = zip(*(tensor.split(ROWS) for tensor in batch()), strict=True)
    for number, (words, labels) in enumerate(pairs, start=1):
        (model(words, labels) / ACCUMULATION).backward()
        if number % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@pytest.mark.parametrize(
    ("pooling", "is_divided_first"), [("mean", True), ("sum", False), ("twice", False)]
)
def test_training_when_rows_are_averaged_then_has_plain_pytorchs_weights(
    pooling: str, is_divided_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (weights, text) = Averaged(pooling), trained(pooling)
    for found, expected in zip(weights, plain(model), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    backward = text[text.index("backward") :]
    places = [backward.find(name) for name in ("aten::div.Scalar", "aten::expand(")]
    is_before = min(places) >= 0 and places[0] < places[1]
    assert is_before is is_divided_first
    leave_out(monkeypatch, divide_before_expanding)
    for found, other in zip(weights, trained(pooling)[0], strict=True):
        assert torch.equal(found, other)


def trained(pooling: str) -> tuple[list[torch.Tensor], str]:
    """Returns the weights after the same updates by the engine, and its program."""
    model = Averaged(pooling)
    options = poptorch.Options().deviceIterations(WINDOWS)
    options.Training.gradientAccumulation(ACCUMULATION)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options, optimizer)
    training(*batch())
    text = str(training._executable.program)
    training.copyWeightsToHost()
    return [weight.detach() for weight in model.parameters()], text
