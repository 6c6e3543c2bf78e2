"""Recomputation: api §8.6 (what PopTorch forces), §12.1, semantics §10 and §19."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.config import Recomputation
from poptorch_emu.segments.recomputation import recomputation_of

pytestmark = pytest.mark.feature("autoRecomputation", fidelity="exact")


class TwoStages(torch.nn.Module):
    def __init__(self, second_ipu: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        self.second_ipu = second_ipu

    def forward(self, x: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("second", ipu_id=self.second_ipu):
            x = self.second(x)
            return x, poptorch.identity_loss(x, "sum")


def chosen(strategy, second_ipu: int, asked: int | None = None) -> Recomputation:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(3)
    if asked is not None:
        options._Popart.set("autoRecomputation", asked)
    model = TwoStages(second_ipu)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(3, 3))
    executable = training._compiled()
    return recomputation_of(executable.config, executable.partition)


@pytest.mark.parametrize(
    ("strategy", "second_ipu", "expected"),
    [
        (poptorch.PipelinedExecution, 1, Recomputation.PIPELINE),
        (poptorch.PipelinedExecution, 0, Recomputation.NONE),
        (poptorch.ShardedExecution, 1, Recomputation.NONE),
    ],
)
def test_recomputation_when_nothing_is_set_then_is_on_in_pipelines_of_several_ipus(
    strategy, second_ipu: int, expected: Recomputation
) -> None:
    assert chosen(strategy(), second_ipu) is expected


@pytest.mark.parametrize(("asked", "warns"), [(0, True), (3, False), (4, True)])
def test_recomputation_when_forced_then_wins_with_a_warning(
    caplog: pytest.LogCaptureFixture, asked: int, warns: bool
) -> None:
    assert chosen(poptorch.PipelinedExecution(), 1, asked) is Recomputation(asked)
    text = f"autoRecomputation forced by the user from default to {asked}, ignoring value 3"
    assert [record.getMessage() for record in caplog.records] == [text] * warns


def test_recomputation_when_out_of_range_then_raises() -> None:
    with pytest.raises(poptorch.Error, match="Value for RecomputationType out of range"):
        chosen(poptorch.PipelinedExecution(), 1, 5)


def test_checkpoint_when_called_outside_a_trace_then_returns_its_arguments() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    assert poptorch.recomputationCheckpoint(x) is x
    assert poptorch.recomputationCheckpoint(x, y) == (x, y)
    with pytest.raises(ValueError, match="All inputs must be tensors"):
        poptorch.recomputationCheckpoint(x, 1)


class Pair(NamedTuple):
    first: torch.Tensor
    rest: list[torch.Tensor]


@pytest.mark.parametrize("structure", [[torch.ones(2)], Pair(torch.ones(2), [torch.zeros(2)])])
def test_checkpoint_when_given_a_container_then_returns_its_like(structure) -> None:
    result = poptorch.recomputationCheckpoint(structure)
    assert type(result) is type(structure)
    assert result[0] is structure[0] and len(result) == len(structure)
    with pytest.raises(ValueError, match="All inputs must be tensors"):
        poptorch.recomputationCheckpoint([structure[0], 1])
