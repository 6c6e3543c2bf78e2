"""The path of micro-batches: as free as the engine's checks allow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.joining import join
from support.paths import path_in, set_freest_path
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import _C

N = 4


class Model(nn.Module):
    """Two stages; the first one may have a batch norm, whose statistics each micro-batch writes."""

    def __init__(self, *, has_norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3) if has_norm else nn.Identity()
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("first", ipu_id=0):
            x = self.norm(self.first(x))
        with poptorch.Block("last", ipu_id=1):
            y = self.last(x)
            return y, poptorch.identity_loss(y.square(), "mean")


def nothing(options: poptorch.Options) -> None:
    pass


def sums_outputs(options: poptorch.Options) -> None:
    options.outputMode(poptorch.OutputMode.Sum)


def keeps_sums_in_streaming_memory(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    location.minElementsForOffChip(2)
    options.TensorLocations.setAccumulatorLocation(location)


@pytest.mark.parametrize(
    ("model", "change", "expected"),
    [
        (Model(), nothing, ["in any order"] * 4),
        (Model(), sums_outputs, ["in any order", "in turn", "in any order", "in any order"]),
        (Model(has_norm=True), nothing, ["one by one", *["in any order"] * 3]),
        (
            Model(),
            keeps_sums_in_streaming_memory,
            ["in any order", "in any order", "in turn", "in turn"],
        ),
    ],
    ids=["plain", "sums", "batch norm", "remote sums"],
)
def test_path_of_training_then_is_the_freest_that_the_engine_accepts(
    model: nn.Module,
    change: Callable[[poptorch.Options], None],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join(monkeypatch, 1)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(N)
    change(options)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(torch.randn(2 * N, 3))
    program = training._executable.program
    path = path_in(program)
    assert [line.rpartition(", ")[2] for line in path] == expected
    copy = _C.Program.deserialize(program.serialize())
    set_freest_path(copy)
    assert path_in(copy) == path
