"""The result of `_debugGetPopartIR`: operations of each graph, including stashes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("PoplarExecutor._debugGetPopartIR", fidelity="modelled")

X, Y = torch.ones(8, 3), torch.ones(8, 1)


class Stages(nn.Module):
    """Two layers on the first IPU and one on the second."""

    def __init__(self, marks: int = 0) -> None:
        super().__init__()
        self.marks = marks
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a", ipu_id=0):
            x = self.first(x).relu()
            x = poptorch.recomputationCheckpoint(x) if self.marks > 0 else x
            x = self.second(x).relu()
            x = poptorch.recomputationCheckpoint(x) if self.marks > 1 else x
        with poptorch.Block("b", ipu_id=1):
            return nn.functional.mse_loss(self.last(x), y)


def options() -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(8)
    return opts


def graphs(model: poptorch.PoplarExecutor, *inputs: torch.Tensor) -> dict[str, list[Any]]:
    model.compile(*inputs)
    return json.loads(model._debugGetPopartIR())


def count(operations: list[Any], kind: str) -> int:
    return sum(kind in each["type"] for each in operations)


@pytest.mark.parametrize(("marks", "stashes"), [(0, 2), (1, 3), (2, 3)])
def test_pipeline_that_recomputes_then_stashes_ends_and_checkpoints(marks, stashes) -> None:
    """The stage's input, its values for the next IPU, and marked values (hardware.md 3.2)."""
    main = graphs(poptorch.trainingModel(Stages(marks), options()), X, Y)["maingraph"]
    assert count(main, "Stash") == count(main, "Restore") == stashes
    stashed = {each["inputs"][0] for each in main if each["type"] == "Stash"}
    assert stashed == {each["inputs"][0] for each in main if each["type"] == "Restore"}
    assert all(each["ipu"] == 0 for each in main if each["type"] == "Stash")


def test_operation_that_is_recomputed_then_is_there_twice() -> None:
    opts = options()
    once = graphs(poptorch.trainingModel(Stages(2), opts.clone()), X, Y)["maingraph"]
    opts._Popart.set("autoRecomputation", 0)
    kept = graphs(poptorch.trainingModel(Stages(0), opts), X, Y)["maingraph"]
    assert count(kept, "Relu") == 2
    assert count(once, "Relu") == 2
    assert count(once, "Gemm") == count(kept, "Gemm") == 3
    again = graphs(poptorch.trainingModel(Stages(0), options()), X, Y)["maingraph"]
    assert count(again, "Relu") > 2


def test_model_on_one_ipu_then_stashes_nothing() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(self.layer(x), y)

    main = graphs(poptorch.trainingModel(Model(), options()), X, Y)["maingraph"]
    assert not count(main, "Stash")
    assert {"forward", "backward"} == {each["phase"] for each in main}


def test_operation_then_has_name_type_place_and_line() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu()

    model = poptorch.inferenceModel(Model(), poptorch.Options().showCompilationProgressBar(False))
    found = graphs(model, X[:2])
    *_, gemm, relu = found["maingraph"]
    assert set(found) == {"maingraph"}
    assert (gemm["name"], gemm["type"], gemm["module"]) == ("layer/Gemm", "Gemm", "layer")
    assert f"{gemm['name']}:0" in model.getTensorNames()
    assert (relu["type"], relu["operator"]) == ("Relu", "aten.relu.default")
    assert relu["inputs"] == [gemm["value"]]
    assert relu["output"] == "float32[2, 4]"
    assert (relu["stage"], relu["ipu"], relu["phase"]) == (0, 0, "forward")
    assert relu["source"].startswith(__file__)


def test_body_of_a_loop_then_is_a_graph_of_its_own() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return poptorch.for_loop(3, lambda value: [value * 2], [x])

    model = poptorch.inferenceModel(Model(), poptorch.Options().showCompilationProgressBar(False))
    main, body = graphs(model, X).values()
    assert count(main, "ForLoop") == count(body, "Mul") == 1
    assert not count(main, "Mul")


def test_model_that_is_not_compiled_then_refused() -> None:
    with pytest.raises(poptorch.Error, match="compile"):
        poptorch.inferenceModel(nn.ReLU())._debugGetPopartIR()
