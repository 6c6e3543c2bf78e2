"""Joined micro-batches have the same bits wherever and however they run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Setting
from support.joining import join
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

WIDTH, CLASSES, ROWS, ACCUMULATION = 16, 5, 3, 8


class Net(nn.Module):
    """Layers in blocks on IPUs, with dropout between them."""

    def __init__(self, ipus: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        self.ipus = ipus
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.25, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        with poptorch.Block("first", ipu_id=self.ipus[0]):
            x = self.first(x)
        with poptorch.Block("body", ipu_id=self.ipus[1]):
            x = self.body(x)
        with poptorch.Block("head", ipu_id=self.ipus[2]):
            scores = self.head(x.mean(1))
            return scores, F.cross_entropy(scores, labels)


def batch(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(num_rows, 4, WIDTH), torch.randint(CLASSES, (num_rows,))


@pytest.fixture(autouse=True)
def _threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def pipelined(order: str) -> Callable[[poptorch.Options], object]:
    def change(options: poptorch.Options) -> None:
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
        emulator.set_schedule(options, order)

    return change


def recompute(options: poptorch.Options) -> None:
    options._Popart.set("autoRecomputation", 4)
    emulator.set_recomputation(options, "executed")


def anchored(options: poptorch.Options) -> None:
    options.anchorTensor("gradient", "Gradient___first.weight")


def off_chip(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setActivationLocation(location)
    options.TensorLocations.setWeightLocation(location)


def results(
    ipus: tuple[int, ...] = (0, 1, 2),
    *changes: Callable[[poptorch.Options], object],
    replicas: int = 1,
) -> list[torch.Tensor]:
    """Returns outputs, losses and weights after two calls of two updates."""
    setting = Setting("sharded", accumulation=ACCUMULATION, iterations=2, replicas=replicas)
    torch.manual_seed(5)
    model = Net(ipus)
    options = setting.options().autoRoundNumIPUs(True)
    for change in changes:
        change(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    training = poptorch.trainingModel(model, options, optimizer)
    found: list[torch.Tensor] = []
    for _ in range(2):
        found += [each.clone() for each in training(*batch(ROWS * setting.num_micro_batches))]
    assert "micro-batches at once" in training._executable.program.text()
    training.destroy()
    return found + [value.clone() for value in model.state_dict().values()]


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return results((0, 0, 0))


WAYS: dict[str, tuple[tuple[int, ...], list[Callable[[poptorch.Options], object]]]] = {
    "two stages": ((0, 1, 1), []),
    "three stages": ((0, 1, 2), []),
    "grouped": ((0, 1, 2), [pipelined("grouped")]),
    "interleaved": ((0, 1, 2), [pipelined("interleaved")]),
    "sequential": ((0, 1, 1), [pipelined("sequential")]),
    "one_f_one_b": ((0, 1, 2), [pipelined("one_f_one_b")]),
    "zero_bubble_h1": ((0, 1, 2), [pipelined("zero_bubble_h1")]),
    "zero_bubble_h2": ((0, 1, 2), [pipelined("zero_bubble_h2")]),
    "recomputed": ((0, 1, 2), [pipelined("grouped"), recompute]),
    "off chip": ((0, 1, 2), [pipelined("grouped"), off_chip]),
    "anchored": ((0, 1, 2), [anchored]),
    "profiled": ((0, 1, 2), [lambda options: options.enableProfiling()]),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_however_it_is_cut_and_ordered_then_has_the_same_bits(
    expected, way, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    ipus, changes = WAYS[way]
    assert all(map(torch.equal, results(ipus, *changes), expected))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("order", ["micro-batches", "schedule"])
def test_training_on_any_number_of_workers_then_has_the_same_bits(
    expected, num_threads, order, monkeypatch
) -> None:
    if order == "schedule":
        monkeypatch.setenv("POPTORCH_EMU_ORDER", order)
    torch.set_num_threads(num_threads)
    assert all(map(torch.equal, results(), expected))


@pytest.mark.parametrize("ipus", [(0, 0, 0), (0, 1, 2)])
def test_replicas_however_they_are_cut_then_have_the_same_bits(ipus) -> None:
    first = results((0, 0, 0), replicas=2)
    torch.set_num_threads(2)
    assert all(map(torch.equal, results(ipus, replicas=2), first))


class Noise(nn.Module):
    """A model whose results depend on random numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor):
        y = F.dropout(x * self.scale, 0.5) + torch.rand_like(x) + torch.randint(9, x.shape)
        return y, poptorch.identity_loss(y, reduction="mean")


@pytest.mark.parametrize("replicas", [1, 2])
def test_random_numbers_when_joined_then_are_those_of_each_micro_batch(
    monkeypatch, replicas
) -> None:
    setting = Setting("sharded", accumulation=4, iterations=2, replicas=replicas)
    given = torch.randn(ROWS * setting.num_micro_batches, WIDTH)
    drawn = []
    for count in (1, 2, 4):
        with monkeypatch.context() as patch:
            join(patch, count)
            model = Noise()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            training = poptorch.trainingModel(model, setting.options(), optimizer)
            drawn.append([training(given)[0].clone() for _ in range(2)])
            training.destroy()
    for others in drawn[1:]:
        assert all(map(torch.equal, others, drawn[0]))


@pytest.mark.parametrize("mode", ["All", "Final", "EveryN", "Sum"])
@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_outputs_of_inference_when_joined_then_are_gathered_by_their_mode(
    monkeypatch, mode, count
) -> None:
    given = torch.randn(24, 4, WIDTH), torch.randint(CLASSES, (24,))
    found = []
    for number in (1, count):
        with monkeypatch.context() as patch:
            join(patch, number)
            torch.manual_seed(5)
            options = poptorch.Options().deviceIterations(12).showCompilationProgressBar(False)
            period = 3 if mode == "EveryN" else 1
            options.autoRoundNumIPUs(True)
            options.setExecutionStrategy(poptorch.ShardedExecution())
            options.outputMode(getattr(poptorch.OutputMode, mode), period)
            inference = poptorch.inferenceModel(Net().eval(), options)
            found.append([each.clone() for each in inference(*given)])
            inference.destroy()
    for actual, single in zip(*found, strict=True):
        torch.testing.assert_close(actual, single)


class Written(nn.Module):
    """A model that counts its calls; the next micro-batch reads the counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.count


def test_model_that_writes_in_forward_then_is_not_joined() -> None:
    options = poptorch.Options().deviceIterations(4).showCompilationProgressBar(False)
    inference = poptorch.inferenceModel(Written(), options)
    assert inference(torch.zeros(4, 1)).reshape(-1).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert "at once" not in inference._executable.program.text()


@pytest.mark.parametrize("setting", ["accumulator", "running mean", "rounding", "checked"])
def test_sums_that_are_rounded_by_micro_batch_then_are_not_joined(setting) -> None:
    model = nn.Linear(WIDTH, 1).half()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    settings = {}
    if setting == "accumulator":
        settings["accum_type"] = torch.float16
    elif setting == "running mean":
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(
            poptorch.MeanReductionStrategy.Running
        )
    elif setting == "rounding":
        options.Precision.enableStochasticRounding(True)
    else:
        options.Precision.enableFloatingPointExceptions(True)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(model)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.model(x), reduction="mean")

    wrapped = WithLoss()
    optimizer = poptorch.optim.SGD(wrapped.parameters(), lr=0.1, **settings)
    training = poptorch.trainingModel(wrapped, options, optimizer)
    training(torch.ones(8, WIDTH, dtype=torch.float16))
    assert "at once" not in training._executable.program.text()
