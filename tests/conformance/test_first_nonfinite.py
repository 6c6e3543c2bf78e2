"""`emulator.first_nonfinite`: the operation at which a NaN or an infinity begins."""

from __future__ import annotations

import math

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.numbers.run import Direction

pytestmark = pytest.mark.feature("emulator.first_nonfinite", fidelity="exact")


class Masked(torch.nn.Module):
    """A softmax of scores. A mask hides some scores by infinities, on purpose."""

    def __init__(self, num_hidden: int) -> None:
        super().__init__()
        self.scores = torch.nn.Linear(4, 4)
        self.num_hidden = num_hidden

    def forward(self, x, target):
        hidden = torch.arange(4) < self.num_hidden
        y = self.scores(x).masked_fill(hidden, -math.inf).softmax(-1)
        return y, torch.nn.functional.mse_loss(y, target)


def options(accumulation=2):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(accumulation)
    return opts


def training(model):
    return poptorch.trainingModel(model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1))


def data():
    return torch.randn(4, 4), torch.randn(4, 4)


def test_mask_when_a_number_stays_then_its_infinities_do_no_harm():
    report = emulator.first_nonfinite(training(Masked(3)), *data())
    assert not report
    assert str(report) == "All outputs, gradients and weights of the window are finite."


def test_mask_when_it_hides_all_then_the_softmax_is_named_and_the_infinity_before_it():
    report = emulator.first_nonfinite(training(Masked(4)), *data())
    assert report
    assert (report.first.value.kind, report.first.num_nan) == ("_softmax", 8)
    assert report.first.value.direction is Direction.FORWARD
    assert report.overflow.value.kind == "masked_fill"
    assert report.reached == ("output 0", "output 1")
    assert "test_first_nonfinite.py" in str(report)


def test_overflow_when_half_is_too_short_then_the_product_is_named():
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 2)

        def forward(self, x):
            return self.linear(x * 200)

    model = Large().half()
    torch.nn.init.ones_(model.linear.weight)
    report = emulator.first_nonfinite(
        poptorch.inferenceModel(model), torch.full((1, 64), 10).half()
    )
    assert report.first.value.module == "linear"
    assert (report.first.num_nan, report.first.num_infinite) == (0, 2)
    assert ("mul", 2000.0) in report.first.inputs


def test_second_micro_batch_when_it_alone_has_a_bad_row_then_its_number_is_told():
    x, target = data()
    x[2, 1] = math.nan
    report = emulator.first_nonfinite(training(Masked(1)), x, target)
    assert report.first.value.name == "input 0"
    assert report.first.position == (1, 0)


def test_backward_when_a_root_is_of_zero_then_the_gradient_is_named():
    class Root(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4, bias=False)

        def forward(self, x, target):
            y = self.linear(x).square().sum(-1).sqrt()
            return y, torch.nn.functional.mse_loss(y, target)

    report = emulator.first_nonfinite(training(Root()), torch.zeros(4, 4), torch.ones(4))
    assert report.first.value.direction is Direction.BACKWARD
    assert "test_first_nonfinite.py" in report.first.value.line


def test_weight_when_it_is_not_finite_then_it_is_named_first():
    model = Masked(1)
    with torch.no_grad():
        model.scores.bias[2] = math.inf
    report = emulator.first_nonfinite(training(model), *data())
    assert report.reached
    assert "scores.bias" in (
        report.first.value.name,
        report.overflow and report.overflow.value.name,
    )


def test_model_of_another_front_end_then_what_ran_last_for_it_is_looked_at():
    class Front:
        def _poptorch_emu_last_run(self):
            return poptorch.inferenceModel(torch.nn.LogSigmoid())

    bad = torch.tensor([math.nan])
    assert emulator.first_nonfinite(Front(), bad)
    assert emulator.compare(Front(), torch.ones(1)).verdict == 0
    assert emulator.numerics(Front(), torch.ones(1)).operations
