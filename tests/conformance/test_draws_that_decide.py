"""Random numbers in conditions of forward: allowed if every draw decides alike (layer drop)."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from support.wrapped_functions import X, run, wrapped

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Draws that decide", fidelity="exact")

# Ways in which a model draws a number in [0, 1).
DRAWS = {
    "rand": lambda: torch.rand([]),
    "rand of one row": lambda: torch.rand(1)[0],
    "item": lambda: torch.rand(1).item(),
    "python": lambda: random.random(),
    "python's uniform": lambda: random.uniform(0, 1),
    "numpy": lambda: np.random.rand(),
    "numpy's uniform": lambda: np.random.uniform(0, 1),
}
# Conditions on a draw, each with its value, which is the same for every draw.
CERTAIN = {
    "< 0": (lambda draw: draw < 0.0, False),
    "<= -1": (lambda draw: draw <= -1, False),
    "> 1": (lambda draw: draw > 1.0, False),
    ">= 1": (lambda draw: draw >= 1, False),
    "< 1": (lambda draw: draw < 1.0, True),
    ">= 0": (lambda draw: draw >= 0.0, True),
    "0 >": (lambda draw: 0.0 > draw, False),
}
UNCERTAIN = {
    "< 0.1": lambda draw: draw < 0.1,
    "<= 0": lambda draw: draw <= 0,
    "> 0": lambda draw: draw > 0,
    ">= 0.9": lambda draw: draw >= 0.9,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize(("condition", "truth"), CERTAIN.values(), ids=CERTAIN)
def test_condition_that_no_draw_changes_then_decides(draw, condition, truth) -> None:
    executor = run(lambda self, x: x + 1 if condition(draw()) else x - 1, X)
    assert torch.equal(executor(X), X + 1 if truth else X - 1)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("condition", UNCERTAIN.values(), ids=UNCERTAIN)
def test_condition_that_a_draw_changes_then_refused_with_the_way_out(draw, condition) -> None:
    with pytest.raises(poptorch.Error, match=r"torch\.where.*poptorch\.cond"):
        run(lambda self, x: x + 1 if condition(draw()) else x - 1, X)


def test_draw_that_was_changed_in_place_then_refused() -> None:
    def forward(self, x):
        draw = torch.rand([])
        draw.view(1).sub_(2)
        return x + 1 if draw < 0.0 else x

    with pytest.raises(poptorch.Error, match="reads a value that only exists when the model runs"):
        run(forward, X)


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: np.random.rand()])
def test_draw_of_the_host_in_a_computation_then_refused(draw) -> None:
    with pytest.raises(poptorch.Error, match="would use the first draw in every call"):
        run(lambda self, x: x * 2 * draw(), X)


def test_array_drawn_on_the_host_then_warns_that_it_is_drawn_once(caplog) -> None:
    executor = wrapped(lambda self, x: x + torch.tensor(np.random.rand(2)).float())
    assert torch.equal(executor(X), executor(X))
    assert "every call of the compiled model uses these numbers again" in caplog.text
