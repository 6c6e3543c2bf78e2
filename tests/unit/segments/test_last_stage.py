"""Recomputation in the last stage of a pipeline: hardware.md 3.2."""

from __future__ import annotations

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.config import Recomputation
from poptorch_emu.ir.graph import record_of
from poptorch_emu.segments.recomputation import recomputed_operations


class Chain(torch.nn.Module):
    """A first stage, and a last one of four layers with checkpoints behind some of them."""

    def __init__(self, marked: tuple[int, ...]) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))
        self.marked = marked

    def forward(self, x: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("last", ipu_id=1):
            for index, layer in enumerate(self.layers):
                x = torch.tanh(layer(x))
                if index in self.marked:
                    x = poptorch.recomputationCheckpoint(x)
            return x, poptorch.identity_loss(x.exp(), "sum")


def recomputed_layers(marked: tuple[int, ...], mode: Recomputation) -> dict[str, int]:
    """Returns how many operations of each module of the last stage are recomputed, views aside."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(3)
    model = Chain(marked)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(3, 3))
    executable = training._compiled()
    found: dict[str, int] = {}
    for node in recomputed_operations(executable.graph, executable.partition, mode):
        record = record_of(node)
        if record.place.block_id == "last" and "view" not in node.name and node.name[:2] != "t_":
            name = str(node.target).split(".")[1]
            found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.parametrize(
    ("marked", "layers", "activations"),
    [
        ((), 0, 0),
        ((0,), 1, 0),  # The marked activation and all later ones are kept.
        ((2,), 3, 2),
        ((0, 2), 3, 1),
        ((3,), 4, 3),
    ],
)
def test_last_stage_then_keeps_what_follows_its_last_checkpoints(
    marked: tuple[int, ...], layers: int, activations: int
) -> None:
    found = recomputed_layers(marked, Recomputation.PIPELINE)
    assert (found.get("addmm", 0), found.get("tanh", 0)) == (layers, activations)
    assert "exp" not in found


def test_last_stage_when_everything_is_asked_for_then_recomputes_beyond_checkpoints() -> None:
    found = recomputed_layers((1,), Recomputation.ALL)
    assert (found["addmm"], found["tanh"]) == (4, 3)
