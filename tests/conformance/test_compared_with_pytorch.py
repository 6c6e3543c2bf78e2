"""`emulator.compare` with plain PyTorch, which agrees if the model is right."""

from __future__ import annotations

import pytest
import torch
from support.numbers_models import batch
from support.numbers_runs import (
    ROWS,
    options,
    sgd,
    training,
)

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.numbers.run import Direction
from poptorch_emu.numbers.verdicts import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")


def test_compare_when_the_model_is_right_then_plain_pytorch_agrees():
    report = emulator.compare(training(opts=options(4)), *batch(4 * ROWS))
    assert report.verdict is Verdict.REORDERED
    directions = {row.direction for row in report.modules if row.num_values}
    assert directions == set(Direction)
    assert {row.module for row in report.modules} >= {"norm", "attention.qkv", "mlp.down", "head"}


class Normed(torch.nn.Module):
    """Batch norm, whose buffers change, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(0.4)
        self.last = torch.nn.Linear(4, 5)

    def forward(self, x, target):
        x = torch.relu_(self.norm(self.first(x)))
        x = self.last(self.drop(torch.nn.functional.avg_pool2d(x, 6).flatten(1)))
        return x, torch.nn.functional.cross_entropy(x, target)


def images(rows):
    return torch.randn(rows, 3, 8, 8), torch.randint(5, (rows,))


def normed(opts):
    model = Normed()
    return poptorch.trainingModel(model, opts.broadcastBuffers(False), sgd(model.parameters()))


def test_compare_when_there_are_buffers_dropout_and_replicas_then_plain_pytorch_agrees():
    report = emulator.compare(normed(options(2, 2)), *images(16))
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert any(row.module == "norm" and row.direction is Direction.GIVEN for row in report.modules)


def test_compare_when_the_model_is_not_in_training_then_only_forward_is_compared():
    model = Normed().eval()

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model.last(self.model.norm(self.model.first(x)).mean((2, 3)))

    report = emulator.compare(
        poptorch.inferenceModel(Scores(), poptorch.Options().deviceIterations(2)), images(4)[0]
    )
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert {row.direction for row in report.modules} == {Direction.GIVEN, Direction.FORWARD}


class Lost(torch.nn.Module):
    """A module with its loss."""

    def __init__(self, module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x, target):
        y = self.module(x)
        y = y[0] if isinstance(y, tuple) else y
        return y, torch.nn.functional.mse_loss(y, target)


class Noisy(torch.nn.Module):
    """Draws random numbers of several kinds, and does not use the mask of its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(torch.nn.functional.dropout(x + 0.1 * torch.randn_like(x), 0.5))
        return y * torch.bernoulli(torch.full_like(y, 0.7))


class Tied(torch.nn.Module):
    """Uses a module twice, and a weight for two things."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 4, bias=False)
        self.inside = torch.nn.Linear(4, 4)
        self.inside.weight = self.out.weight

    def forward(self, x):
        return self.out(torch.tanh(self.inside(self.inside(x))))


@pytest.mark.parametrize(
    ("make", "shape", "out"),
    [
        (lambda: torch.nn.LSTM(4, 3, batch_first=True), (4, 5, 4), (4, 5, 3)),
        (lambda: torch.nn.GRU(4, 3, num_layers=2, batch_first=True), (4, 5, 4), (4, 5, 3)),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.2), (4, 5, 8), (4, 5, 8)),
        (Noisy, (4, 4), (4, 4)),
        (Tied, (4, 4), (4, 4)),
        (
            lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)),
            (4, 4),
            (4, 3),
        ),
    ],
    ids=["lstm", "gru", "encoder", "noisy", "tied", "weight norm"],
)
def test_compare_when_modules_are_of_many_kinds_then_plain_pytorch_agrees(make, shape, out):
    model = Lost(make())
    executor = poptorch.trainingModel(model, options(2, 2), sgd(model.parameters()))
    report = emulator.compare(executor, torch.randn(shape), torch.randn(out))
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_compare_when_the_model_computes_nothing_then_nothing_differs():
    report = emulator.compare(poptorch.inferenceModel(torch.nn.Identity()), torch.ones(2))
    assert (report.verdict, report.num_operations) == (Verdict.EQUAL, 0)


def test_compare_when_weights_are_rounded_at_random_then_it_is_no_more_than_less_precision():
    model = Lost(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))).half()
    opts = options(2)
    opts.Precision.enableStochasticRounding(True)
    executor = poptorch.trainingModel(model, opts, sgd(model.parameters()))
    report = emulator.compare(executor, torch.randn(8, 4).half(), torch.randn(8, 4).half())
    assert report.verdict <= Verdict.LESS_PRECISION
    assert "weights are rounded at random" in str(report).replace("\n  ", " ")


def test_compare_when_a_loop_runs_once_in_plain_pytorch_then_a_note_says_so():
    class Loop(torch.nn.Module):
        def forward(self, x):
            return poptorch.for_loop(3, lambda y: (torch.tanh(y) + 1,), [x])[0] * 2

    report = emulator.compare(poptorch.inferenceModel(Loop()), torch.randn(4))
    assert report.verdict is Verdict.DIFFERENT
    assert "poptorch.for_loop runs its body once" in "".join(report.notes)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_compare_then_model_optimizer_and_device_stay_as_they_are(is_compiled):
    twins = [training(opts=options(2)), training(opts=options(2))]
    data = batch(2 * ROWS)
    if is_compiled:
        for twin in twins:
            twin(*data)
    emulator.compare(twins[0], *data)
    assert twins[0].isCompiled() == is_compiled
    losses = [[twin(*data)[1] for _ in range(3)] for twin in twins]
    torch.testing.assert_close(losses[0], losses[1], rtol=0.0, atol=0.0)
    for ours, theirs in zip(twins[0].model.parameters(), twins[1].model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_compare_when_the_model_has_trained_then_its_present_weights_count():
    model, data = training(), batch(ROWS)
    for _ in range(3):
        model(*data)
    assert emulator.compare(model).verdict is Verdict.REORDERED


def test_channels_last_then_it_is_not_called_different(tmp_path):
    x, target = images(4)
    twins = [normed(options(2)), normed(options(2))]
    twins[1].model.load_state_dict(twins[0].model.state_dict())
    path = emulator.record(twins[0], tmp_path / "run", x, target)
    twins[1].model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    report = emulator.compare(twins[1], x, target, against=path)
    # The dropout is the same, because the seed is the same.
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


@pytest.mark.parametrize("reference", [torch.float32, torch.float64], ids=str)
def test_half_when_a_reference_is_wider_then_it_is_less_precision_and_no_more(reference):
    executor = training(opts=options(2))
    executor.model.half()
    report = emulator.compare(executor, *batch(2 * ROWS), against=reference)
    assert report.verdict is Verdict.LESS_PRECISION
    assert 1e-4 < max(row.relative for row in report.modules if row.module == "norm") < 0.1
