"""Splits of real models by blocks and by modules, and models that are split so."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = [
    pytest.mark.feature("emulator.plan_split", fidelity="modelled"),
    pytest.mark.feature("emulator.autoplace", fidelity="modelled"),
]

WIDTH = 256


class Chain(nn.Module):
    """Layers, the last of which is four times as wide; with blocks if `has_blocks`."""

    def __init__(self, has_blocks: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH))
        self.has_blocks = has_blocks

    def forward(self, x: torch.Tensor):
        for index, layer in enumerate((*self.layers, self.wide)):
            if self.has_blocks:
                poptorch.Block.start(f"b{index}", ipu_id=0)
            x = layer(x)
        return x, poptorch.identity_loss(x, "sum")


def trainer(has_blocks: bool, device: str = "meta"):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    with torch.device(device):
        model, batch = Chain(has_blocks), torch.ones(8 * 512, WIDTH)
    return poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1)), batch


@pytest.mark.parametrize("has_blocks", [True, False])
def test_split_then_balances_stages(has_blocks) -> None:
    split = emulator.plan_split(*trainer(has_blocks), num_ipus=2)
    assert split.fits and split.is_of_blocks == has_blocks
    assert sum(len(stage.units) for stage in split.stages) >= 7
    cycles = [stage.cycles for stage in split.stages]
    assert max(cycles) < 0.75 * sum(cycles)


def test_autoplace_when_there_are_no_blocks_then_makes_them_and_shows_the_code() -> None:
    model, batch = trainer(False)
    split = emulator.autoplace(model, batch, num_ipus=2)
    plan = emulator.estimate(model, batch)
    assert [stage.ipu for stage in plan.stages] == [0, 1]
    first = split.stages[1].units[0]
    assert f"poptorch.BeginBlock(model.get_submodule({first!r}), ipu_id=1)" in str(split)
    # The estimate finds the planned cycles of each stage, apart from copies and additions.
    for planned, stage in zip(split.stages, plan.stages, strict=True):
        assert planned.cycles == pytest.approx(stage.cycles, rel=0.2)


def test_autoplace_when_there_are_blocks_then_gives_them_ipus() -> None:
    model, batch = trainer(True)
    split = emulator.autoplace(model, batch, num_ipus=4)
    plan = emulator.estimate(model, batch)
    assert [stage.blocks for stage in plan.stages] == [stage.units for stage in split.stages]
    assert "poptorch.Stage('b0'" in split.code()


@pytest.mark.parametrize("num_ipus", [2, 4])
def test_split_then_is_nearly_the_best_of_the_estimates_of_all(num_ipus) -> None:
    """The planner adds up blocks; the estimate places and times each whole model."""

    def seconds(ends: tuple[int, ...]) -> float:
        model, batch = trainer(True)
        names = [f"b{index}" for index in range(7)]
        pieces = itertools.pairwise((0, *ends, len(names)))
        stages = [poptorch.Stage(*names[a:b]).ipu(i) for i, (a, b) in enumerate(pieces)]
        model._on_device.place(poptorch.PipelinedExecution(*stages))
        return emulator.estimate(model, batch).step_seconds

    split = emulator.plan_split(*trainer(True), num_ipus=num_ipus)
    chosen = tuple(itertools.accumulate(len(stage.units) for stage in split.stages))[:-1]
    tried = {ends: seconds(ends) for ends in itertools.combinations(range(1, 7), num_ipus - 1)}
    assert tried[chosen] <= 1.03 * min(tried.values())
    assert tried[chosen] < 0.9 * max(tried.values())


class Scaled(nn.Module):
    """Layers with a loss, and an operation before the first block; the last ones are on IPU 1."""

    def __init__(self, on_ipu_0: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.on_ipu_0 = on_ipu_0

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        x = x / 255
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"b{index}", ipu_id=int(index >= self.on_ipu_0))
            x = layer(x)
        return x, nn.functional.cross_entropy(x, labels)


def scaled(on_ipu_0: int):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    with torch.device("meta"):
        model = Scaled(on_ipu_0)
        batch = torch.ones(8 * 64, WIDTH), torch.ones(8 * 64, dtype=torch.int32)
    optimizer = poptorch.optim.SGD(model.parameters(), 1)
    return poptorch.trainingModel(model, options, optimizer), *batch


def test_split_when_operations_are_before_the_blocks_then_its_plan_is_that_of_these_stages() -> (
    None
):
    """The gradient's first value belongs to no block, and not to those operations."""
    split = emulator.plan_split(*scaled(1), num_ipus=2)
    built = emulator.estimate(*scaled(len(split.stages[0].units)))
    (point,) = emulator.what_if(*scaled(1), sweep={"split": [2]}).points
    assert point.throughput == built.throughput


def test_autoplace_when_compiled_then_refuses() -> None:
    model, batch = trainer(True, "cpu")
    model.compile(batch)
    with pytest.raises(poptorch.Error, match=r"call destroy\(\)"):
        emulator.autoplace(model, batch, num_ipus=2)


def test_split_when_there_are_too_few_units_then_raises() -> None:
    with pytest.raises(poptorch.Error, match="cannot be cut into 16 stages"):
        emulator.plan_split(*trainer(True), num_ipus=16)


class Tied(nn.Module):
    """An embedding that shares its matrix with the last layer, around some layers."""

    def __init__(self, has_blocks: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2048, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 2048, bias=False)
        self.head.weight = self.embedding.weight
        self.has_blocks = has_blocks

    def forward(self, x: torch.Tensor):
        for index, part in enumerate((self.embedding, *self.layers, self.head)):
            if self.has_blocks:
                poptorch.Block.start(f"b{index}", ipu_id=0)
            x = part(x)
        return x, poptorch.identity_loss(x, "sum")


@pytest.mark.parametrize("has_blocks", [True, False])
def test_autoplace_when_weights_are_tied_then_closes_a_circle_and_trains_as_before(
    has_blocks,
) -> None:
    results = []
    for num_ipus in (1, 3):
        options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
        options.Training.gradientAccumulation(8)
        torch.manual_seed(3)
        model = Tied(has_blocks)
        training = poptorch.trainingModel(
            model, options, poptorch.optim.SGD(model.parameters(), 1e-6)
        )
        batch = torch.arange(8 * 64).reshape(8, 64)
        if num_ipus > 1:
            split = emulator.autoplace(training, batch, num_ipus=num_ipus)
            assert [stage.ipu for stage in split.stages] == [0, 1, 2, 0]
            assert has_blocks != ("AutoStage.AutoIncrement" in str(split))
            plan = emulator.estimate(training, batch)
            assert [stage.ipu for stage in plan.stages] == [0, 1, 2, 0]
        results.append(training(batch))
        training.destroy()
    torch.testing.assert_close(results[1], results[0])


def test_split_when_one_weight_is_in_all_blocks_then_says_why_it_cannot_be_cut() -> None:
    class Shared(Chain):
        def __init__(self) -> None:
            super().__init__(has_blocks=True)
            self.wide = self.layers[0]
            for index in range(6):
                self.layers[index] = self.layers[0]

    options = poptorch.Options()
    model = Shared()
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1))
    with pytest.raises(poptorch.Error, match="keeps the weight 'layers.0.weight' on one"):
        emulator.plan_split(training, torch.ones(8, WIDTH), num_ipus=3)


def staged(code: str = "") -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
    """Returns a model with one block for each stage, which a module begins, after some lines."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    with torch.device("meta"):
        model, batch = Chain(False), torch.ones(8 * 512, WIDTH)
    poptorch.BeginBlock(model.layers[0], ipu_id=0)
    poptorch.BeginBlock(model.layers[5], ipu_id=1)
    exec(code, {"options": options, "poptorch": poptorch, "model": model})
    return poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), 1)), batch


def test_split_when_each_stage_is_one_block_of_a_module_then_replaces_the_blocks() -> None:
    split = emulator.plan_split(*staged(), num_ipus=2)
    assert not split.is_of_blocks
    assert split.code().startswith("poptorch.removeBlocks(model)\n")
    before, after = emulator.estimate(*staged()), emulator.estimate(*staged(split.code()))
    assert after.throughput > 1.1 * before.throughput
    for planned, stage in zip(split.stages, after.stages, strict=True):
        assert planned.cycles == pytest.approx(stage.cycles, rel=0.2)
    placed, batch = staged()
    emulator.autoplace(placed, batch, num_ipus=2)
    assert [s.cycles for s in emulator.estimate(placed, batch).stages] == [
        stage.cycles for stage in after.stages
    ]
