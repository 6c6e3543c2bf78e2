"""Every strategy, recomputation and placement trains like the plain PyTorch loop."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from support.helpers import Setting, assert_same_training, plain_step
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu import emulator

STAGES = 4
SETTING = Setting("sharded", accumulation=8, iterations=2)

Change = Callable[[poptorch.Options], object]


def pipelined(order: str) -> Change:
    def change(options: poptorch.Options) -> None:
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
        emulator.set_schedule(options, order)

    return change


def phased(strategy: type, ipus: list[int], change: Callable[[object], object]) -> Change:
    def set_strategy(options: poptorch.Options) -> None:
        blocks = [["part0"], ["part1"], ["part2"], ["part3", "loss"]]
        phases = [
            poptorch.Phase(poptorch.Stage(*ids).ipu(i)) for ids, i in zip(blocks, ipus, strict=True)
        ]
        made = strategy(*phases)
        change(made)
        options.setExecutionStrategy(made)

    return set_strategy


def recompute(mode: int) -> Change:
    return lambda options: options._Popart.set("autoRecomputation", mode)


def off_chip(*what: str) -> Change:
    def change(options: poptorch.Options) -> None:
        for name in what:
            location = poptorch.TensorLocationSettings().useOnChipStorage(False)
            getattr(options.TensorLocations, f"set{name}Location")(location)

    return change


STRATEGIES = {
    "sharded": lambda options: None,
    "grouped": pipelined("grouped"),
    "interleaved": pipelined("interleaved"),
    "sequential": pipelined("sequential"),
    "serial phases": phased(
        poptorch.SerialPhasedExecution,
        [0, 0, 1, 1],
        lambda s: s.setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase),
    ),
    "parallel phases": phased(
        poptorch.ParallelPhasedExecution, [0, 1, 0, 1], lambda s: s.sendTensorsOffChipAfterFwd()
    ),
}
CHANGES = {
    "kept": [recompute(0)],
    "standard": [recompute(1)],
    "norms": [recompute(2)],
    "pipeline": [recompute(3)],
    "all": [recompute(4)],
    "off chip": [off_chip("Weight", "Optimizer", "Accumulator", "Activation")],
    "all, off chip": [recompute(4), off_chip("Weight", "Optimizer", "Accumulator", "Activation")],
}


def train(family: str, *changes: Change, setting: Setting = SETTING) -> list[torch.Tensor]:
    """Returns the losses of two calls and the weights after them."""
    torch.manual_seed(3)
    model = FAMILIES[family].make(STAGES)
    batches = [FAMILIES[family].batch(2 * setting.num_micro_batches) for _ in range(2)]
    options = setting.options()
    for change in changes:
        change(options)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, options, optimizer)
    losses = [training(*batch)[1] for batch in batches]
    training.destroy()
    return [*losses, *model.state_dict().values()]


def train_plain(family: str, setting: Setting = SETTING) -> list[torch.Tensor]:
    """Returns the losses and the weights of the plain PyTorch loop."""
    torch.manual_seed(3)
    model = FAMILIES[family].make(STAGES)
    batches = [FAMILIES[family].batch(2 * setting.num_micro_batches) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = [plain_step(model, optimizer, batch, setting) for batch in batches]
    return [*losses, *copy.deepcopy(model).state_dict().values()]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[torch.Tensor]]:
    return {family: train_plain(family) for family in ("mlp", "resnet")}


@pytest.mark.feature("Execution strategies, recomputation and offloading", fidelity="exact")
@pytest.mark.parametrize("changes", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
def test_mlp_when_run_in_any_way_then_equals_plain_pytorch(
    expected: dict[str, list[torch.Tensor]], strategy: Change, changes: list[Change]
) -> None:
    for value, reference in zip(train("mlp", strategy, *changes), expected["mlp"], strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_sequential_pipeline_when_micro_batches_are_fewer_than_stages_then_equals_plain_pytorch(
    accumulation: int,
) -> None:
    setting = Setting("sharded", accumulation)
    values = train("mlp", pipelined("sequential"), setting=setting)
    for value, reference in zip(values, train_plain("mlp", setting), strict=True):
        torch.testing.assert_close(value.view_as(reference), reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["resnet", "transformer", "lstm"])
def test_bits_when_recomputed_or_off_chip_then_are_those_of_a_run_that_keeps_all(
    family: str,
) -> None:
    kept = train(family, pipelined("grouped"), recompute(0))
    for changes in (CHANGES["pipeline"], CHANGES["standard"], CHANGES["all, off chip"]):
        for value, reference in zip(
            train(family, pipelined("grouped"), *changes), kept, strict=True
        ):
            assert torch.equal(value, reference)


@pytest.mark.parametrize("family", ["resnet", "transformer", "lstm"])
@pytest.mark.parametrize("strategy", ["serial phases", "parallel phases"])
def test_bits_when_phases_leave_the_chip_then_are_those_of_phases_that_stay(
    family: str, strategy: str
) -> None:
    def stay(options: poptorch.Options) -> None:
        here = poptorch.TensorLocationSettings().useOnChipStorage(True)
        options.TensorLocations.setWeightLocation(here).setActivationLocation(here)

    kept = train(family, STRATEGIES[strategy], stay)
    for value, reference in zip(train(family, STRATEGIES[strategy]), kept, strict=True):
        assert torch.equal(value, reference)


def test_batch_norm_when_recomputed_then_updates_its_statistics_once(
    expected: dict[str, list[torch.Tensor]],
) -> None:
    values = train("resnet", pipelined("grouped"), recompute(4))
    for value, reference in zip(values, expected["resnet"], strict=True):
        if value.is_floating_point():
            torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-5)


class Noisy(torch.nn.Module):
    """Dropout and noise in each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"part{index}", ipu_id=index):
                x = torch.nn.functional.dropout(torch.tanh(layer(x)), 0.3)
                x = x * (1 + 0.1 * torch.rand_like(x))
        with poptorch.Block("loss", ipu_id=1):
            return x, poptorch.identity_loss((x * x).sum(dim=1), "mean")


@pytest.mark.parametrize("mode", [1, 3, 4])
def test_random_numbers_when_recomputed_then_are_the_same_again(mode: int) -> None:
    results = []
    for chosen in (0, mode):
        torch.manual_seed(4)
        model = Noisy()
        options = Setting("pipelined", accumulation=6, iterations=2).options()
        options._Popart.set("autoRecomputation", chosen)
        training = poptorch.trainingModel(
            model, options, poptorch.optim.SGD(model.parameters(), lr=0.1)
        )
        losses = training(torch.randn(24, 6))[1]
        training.destroy()
        results.append([losses, *model.state_dict().values()])
    for value, reference in zip(*results, strict=True):
        assert torch.equal(value, reference)


class Revisiting(torch.nn.Module):
    """Four layers on two IPUs, each visited twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(4)])

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"part{index}", ipu_id=index % 2):
                x = torch.tanh(layer(x))
        with poptorch.Block("loss", ipu_id=1):
            return x, torch.nn.functional.cross_entropy(x, labels)


class AutoIncrement(Setting):
    def options(self) -> poptorch.Options:
        options = super().options()
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
        return options


def test_pipeline_when_an_ipu_is_revisited_then_equals_plain_pytorch() -> None:
    assert_same_training(
        Revisiting(),
        lambda rows: (torch.randn(rows, 6), torch.randint(6, (rows,))),
        AutoIncrement(accumulation=8, iterations=2),
        num_updates=6,
    )
