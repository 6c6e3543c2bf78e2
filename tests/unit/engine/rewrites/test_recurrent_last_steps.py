"""Recurrent layers in training: kernels by rows, and last steps without a sequence of zeros."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.processors import needs_vectors
from support.rewrites import leave_out
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.rewrites import table
from poptorch_emu.engine.rewrites.recurrent import take_last_steps, train_by_rows

ROWS, STEPS, SIZE, HIDDEN = 16, 5, 6, 32
SELECTED = "::select_backward("


class Reader(nn.Module):
    """A recurrent layer, and a linear one that reads a step of it.

    Args:
        step: index of the step, in the order of the input.
        uses_state: whether the final state is read as well.
        uses_all: whether all steps are read as well.
    """

    def __init__(
        self,
        kind: str,
        *,
        batch_first: bool,
        step: int = -1,
        uses_state: bool = False,
        uses_all: bool = False,
        **how: Any,
    ) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(SIZE, HIDDEN, batch_first=batch_first, **how)
        self.head = nn.Linear(HIDDEN * (2 if how.get("bidirectional") else 1), 3)
        self.kind, self.batch_first, self.step = kind, batch_first, step
        self.uses_state, self.uses_all = uses_state, uses_all

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, state = self.layer(x if self.batch_first else x.transpose(0, 1))
        read = out[:, self.step] if self.batch_first else out[self.step]
        loss = self.head(read).square().mean()
        if self.uses_state:
            loss = loss + (state[0] if self.kind == "LSTM" else state).sin().mean()
        if self.uses_all:
            loss = loss + out.cos().mean()
        return poptorch.identity_loss(loss, "none")


def trained(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], str]:
    """Returns the weights after an update, and the program's text."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    training(x)
    weights = [value.detach().clone() for value in model.state_dict().values()]
    return weights, training._executable.program.text()


def assert_like_pytorch(model: Reader) -> str:
    """Compares an update with plain PyTorch; returns the program's text."""
    x = torch.randn(ROWS, STEPS, SIZE)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    plain(x).backward()
    optimizer.step()
    weights, text = trained(model, x)
    for found, expected in zip(weights, plain.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    return text


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("uses_state", [True, False])
@pytest.mark.parametrize("step", [-1, STEPS - 1])
def test_last_step_then_its_gradient_is_the_states(
    kind: str, batch_first: bool, uses_state: bool, step: int
) -> None:
    model = Reader(kind, batch_first=batch_first, uses_state=uses_state, step=step)
    assert SELECTED not in assert_like_pytorch(model)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "how", [{"step": 0}, {"step": -2}, {"uses_all": True}, {"step": 0, "uses_state": True}]
)
def test_other_steps_then_have_gradients_of_their_own(
    batch_first: bool, how: dict[str, Any]
) -> None:
    assert SELECTED in assert_like_pytorch(Reader("LSTM", batch_first=batch_first, **how))


@pytest.mark.parametrize("how", [{"bidirectional": True}, {"num_layers": 2}])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_of_two_directions_or_several_then_have_the_numbers_of_pytorch(
    kind: str, how: dict[str, Any]
) -> None:
    assert_like_pytorch(Reader(kind, batch_first=True, **how))


def test_last_step_then_the_bits_are_those_of_a_sequence_of_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Reader("LSTM", batch_first=True)
    other, x = copy.deepcopy(model), torch.randn(ROWS, STEPS, SIZE)
    found, _ = trained(model, x)
    leave_out(monkeypatch, take_last_steps)
    expected, text = trained(other, x)
    assert SELECTED in text
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@needs_vectors
@pytest.mark.parametrize(
    ("kind", "rows", "how", "count"),
    [
        ("LSTM", ROWS, {}, 2),
        ("LSTM", ROWS, {"bidirectional": True}, 4),
        ("LSTM", ROWS - 1, {}, 0),
        ("GRU", ROWS, {}, 0),
        ("LSTM", ROWS, {"proj_size": 16}, 0),
    ],
)
def test_lstm_of_enough_rows_then_it_and_its_gradient_run_by_rows(
    kind: str, rows: int, how: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def counting(code: EngineGraph) -> int:
        counts.append(train_by_rows(code))
        return counts[-1]

    rewrites = [
        replace(each, apply=counting) if each.apply is train_by_rows else each
        for each in table.REWRITES
    ]
    monkeypatch.setattr(table, "REWRITES", rewrites)
    model = Reader(kind, batch_first=True, **how)
    if "proj_size" in how:
        model.head = nn.Linear(how["proj_size"], 3)
    trained(model, torch.randn(rows, STEPS, SIZE))
    assert counts == [count]
