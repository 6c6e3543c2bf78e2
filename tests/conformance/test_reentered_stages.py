"""Stages of a pipeline that forward enters again (semantics.md §10): data decides what is legal."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from support.helpers import Setting, plain_step
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.schedule.legality import check

pytestmark = pytest.mark.feature("PipelinedExecution", fidelity="exact")

Block, Pipelined, Stage = poptorch.Block, poptorch.PipelinedExecution, poptorch.Stage
SameAsIpu, AutoIncrement = poptorch.AutoStage.SameAsIpu, poptorch.AutoStage.AutoIncrement


class Towers(nn.Module):
    """Two encoders, one after the other in forward, side by side on two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 3)])
        self.text = nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 3)])

    def forward(self, image, text):
        with Block("image0", ipu_id=0):
            a = self.image[0](image).relu()
        with Block("image1", ipu_id=1):
            a = self.image[1](a)
        with Block("text0", ipu_id=0):
            b = self.text[0](text).relu()
        with Block("text1", ipu_id=1):
            b = self.text[1](b)
            return a * b, mse_loss(a, b)

    @staticmethod
    def batch(rows: int):
        return torch.randn(rows, 4), torch.randn(rows, 5)


class Translator(nn.Module):
    """Encoder and decoder that share an embedding, whose block is entered twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = poptorch.BeginBlock(nn.Embedding(7, 4), "embedding", ipu_id=0)
        self.encoder = poptorch.BeginBlock(nn.Linear(4, 4), "encoder", ipu_id=1)
        self.decoder = poptorch.BeginBlock(nn.Linear(4, 7), "decoder", ipu_id=2)

    def forward(self, source, target):
        memory = self.encoder(self.embedding(source)).mean(1, keepdim=True)
        result = self.decoder(self.embedding(target)) * memory.mean()
        return result, cross_entropy(result.flatten(0, 1), target.flatten())

    @staticmethod
    def batch(rows: int):
        return torch.randint(7, (rows, 3)), torch.randint(7, (rows, 2))


class LateMask(nn.Module):
    """A model whose first stage computes a mask for the second after the second has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)

    def forward(self, x, lengths):
        with Block("first", ipu_id=0):
            y = self.norm(self.first(x))
        with Block("second", ipu_id=1):
            y = self.second(y)
        with Block("first", ipu_id=0):
            mask = (torch.arange(4) < lengths).float() * x.sigmoid()
        with Block("second", ipu_id=1):
            y = y * mask
            return y, mse_loss(y, x)

    @staticmethod
    def batch(rows: int):
        return torch.randn(rows, 4), torch.randint(1, 5, (rows, 1))


class LateStart(nn.Module):
    """A model that begins on the last IPU, with inputs only, and uses the middle IPU twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x, y):
        with Block("late", ipu_id=2):
            a = self.layers[0](x).tanh()
        with Block("middle", ipu_id=1):
            b = self.layers[1](y).tanh()
        with Block("early", ipu_id=0):
            c = self.layers[2](x * y).tanh()
        with Block("again", ipu_id=1):
            b = b * self.layers[3](c)
        with Block("end", ipu_id=2):
            return a + b, mse_loss(a, b)

    @staticmethod
    def batch(rows: int):
        return torch.randn(rows, 4), torch.randn(rows, 4)


STRATEGIES = {
    "towers, by IPU": (Towers, Pipelined(SameAsIpu), 2),
    "towers, listed": (
        Towers,
        Pipelined(Stage("image0", "text0").ipu(1), Stage("image1", "text1").ipu(0)),
        3,  # The stage on IPU 0 before the first block is empty.
    ),
    "translator, by IPU": (Translator, Pipelined(SameAsIpu), 3),
    "translator, by block": (Translator, Pipelined(AutoIncrement), 3),
    "mask, by IPU": (LateMask, Pipelined(SameAsIpu), 2),
    "mask, by block": (LateMask, Pipelined(AutoIncrement), 2),
    "mask, listed": (LateMask, Pipelined(Stage("first"), Stage("second")), 2),
    "late start": (LateStart, Pipelined(SameAsIpu), 3),
}


@pytest.mark.parametrize("order", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize(("kind", "strategy", "num_stages"), STRATEGIES.values(), ids=STRATEGIES)
def test_training_when_a_stage_is_entered_again_then_equals_plain_pytorch(
    kind: type, strategy: Pipelined, num_stages: int, order: str
) -> None:
    model = kind()
    plain = copy.deepcopy(model)
    setting = Setting(accumulation=6, iterations=2)
    options = setting.options().setExecutionStrategy(strategy).autoRoundNumIPUs(True)
    emulator.set_schedule(options, order)
    training = poptorch.trainingModel(
        model, options, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        batch = kind.batch(4 * setting.num_micro_batches)
        expected = plain_step(plain, optimizer, batch, setting)
        torch.testing.assert_close(training(*batch)[1].reshape(-1), expected)
    grid = emulator.schedule(training).grid
    check(grid)
    assert grid.num_stages == num_stages
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_dropout_when_a_stage_is_entered_again_then_has_the_numbers_of_a_sharded_run() -> None:
    results = []
    for strategy in (Pipelined(SameAsIpu), poptorch.ShardedExecution(SameAsIpu)):
        torch.manual_seed(0)
        model = Towers()
        model.image[0], model.text[0] = (
            nn.Sequential(part[0], nn.Dropout(0.5)) for part in (model.image, model.text)
        )
        options = Setting(accumulation=3).options().setExecutionStrategy(strategy)
        training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), 0.1))
        training(torch.ones(6, 4), torch.ones(6, 5))
        results.append(model.state_dict())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name])


def test_plans_when_a_stage_is_entered_again_then_both_visits_belong_to_it() -> None:
    model = Towers()
    options = Setting(accumulation=6).options()
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training(*Towers.batch(12))
    weights = {
        (held.ipu, held.name)
        for held in emulator.memory(training).holdings
        if held.name in dict(model.named_parameters())
    }
    assert weights == {
        (ipu, f"{tower}.{ipu}.{what}")
        for tower in ("image", "text")
        for ipu in (0, 1)
        for what in ("weight", "bias")
    }
    blocks = emulator.schedule(training).blocks
    assert [set(each) for each in blocks] == [{"image0", "text0"}, {"image1", "text1"}]


def test_exported_stages_when_entered_again_then_compute_what_plain_pytorch_does() -> None:
    model, (image, text) = Towers(), Towers.batch(4)
    inference = poptorch.inferenceModel(model, Setting(iterations=2).options())
    inference.compile(image.repeat(2, 1), text.repeat(2, 1))
    first, last = (emulator.export_pipeline(inference).stage_module(stage) for stage in (0, 1))
    torch.testing.assert_close(last(*first(image, text)), model(image, text))


class Backwards(nn.Module):
    """A model whose last block, on IPU 0, reads a value of stage 1."""

    def __init__(self, last: str = "last", ipu: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.last, self.ipu = last, ipu

    def forward(self, x):
        with Block("first", ipu_id=0):
            x = x + 1
        with Block("second", ipu_id=1):
            x = self.linear(x)
        with Block(self.last, ipu_id=self.ipu):
            return x * 2


def infer(model: nn.Module, strategy: Pipelined) -> torch.Tensor:
    options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(4)
    options.setExecutionStrategy(strategy).autoRoundNumIPUs(True)
    return poptorch.inferenceModel(model, options)(torch.ones(4, 2))


REFUSED: dict[str, tuple[Callable[[], Pipelined], str, str, Callable[[], Pipelined], str]] = {
    "by IPU": (
        lambda: Pipelined(SameAsIpu),
        "last",
        "use poptorch.AutoStage.AutoIncrement",
        lambda: Pipelined(AutoIncrement),
        "last",
    ),
    "by IPU, same block": (
        lambda: Pipelined(SameAsIpu),
        "first",
        "open a block with an id of its own there, and use poptorch.AutoStage.AutoIncrement",
        lambda: Pipelined(AutoIncrement),
        "last",
    ),
    "by block": (
        lambda: Pipelined(AutoIncrement),
        "first",
        "open a block with an id of its own there;",
        lambda: Pipelined(AutoIncrement),
        "last",
    ),
    "listed": (
        lambda: Pipelined(Stage("first", "last").ipu(0), Stage("second").ipu(1)),
        "last",
        "list its block in a stage after that of 'second'",
        lambda: Pipelined(Stage("first").ipu(0), Stage("second").ipu(1), Stage("last").ipu(0)),
        "last",
    ),
}


@pytest.mark.parametrize(
    ("refused", "block", "advice", "followed", "new_block"), REFUSED.values(), ids=REFUSED
)
def test_value_that_goes_backwards_then_is_named_with_both_lines_and_the_advice_helps(
    refused, block, advice, followed, new_block
) -> None:
    with pytest.raises(poptorch.Error, match="cannot go backwards") as error:
        infer(Backwards(block), refused())
    text = str(error.value)
    lines = [int(line) for line in re.findall(r"test_reentered_stages\.py:(\d+)", text)]
    begin = Backwards.forward.__code__.co_firstlineno
    assert "'linear/Gemm:0' is made at" in text
    assert lines == [begin + 4, begin + 6]
    assert advice in text
    assert "stage" in text and f"in block '{block}'" in text
    model = Backwards(new_block)
    expected = model(torch.ones(4, 2))
    torch.testing.assert_close(infer(model, followed()), expected)


def test_stages_when_on_one_ipu_then_no_value_goes_backwards() -> None:
    strategy = Pipelined(Stage("first", "last").ipu(0), Stage("second").ipu(0))
    model = Backwards()
    torch.testing.assert_close(infer(model, strategy), model(torch.ones(4, 2)))
