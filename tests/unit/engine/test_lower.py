"""Lowering to a program: facts beside the code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.joining import join

import poptorch_emu as poptorch

ITERATIONS = 4


def printed(x: torch.Tensor) -> torch.Tensor:
    return poptorch.ipu_print_tensor(x)


def printed_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    (result,) = poptorch.for_loop(2, lambda value: [poptorch.ipu_print_tensor(value) + 1], [x])
    return result


class Model(torch.nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x) * 2


@pytest.mark.parametrize(
    ("change", "is_seen_outside"),
    [(torch.neg, False), (printed, True), (printed_in_a_loop, True)],
    ids=["neg", "print", "print-in-loop"],
)
def test_program_when_somebody_sees_when_it_runs_then_says_so(
    change: Callable[[torch.Tensor], torch.Tensor],
    is_seen_outside: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join(monkeypatch, 1)
    options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(ITERATIONS)
    model = poptorch.inferenceModel(Model(change), options)
    model.compile(torch.ones(ITERATIONS, 3))
    program = model._executable.program
    assert ("seen outside" in program.text()) is is_seen_outside
    expected = 1 if is_seen_outside else ITERATIONS
    assert program.num_independent_micro_batches() == expected
