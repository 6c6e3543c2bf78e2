"""`emulator.compare` and `emulator.record`: each mistake is named where it is, and nothing else.

The list of mistakes is `support/numbers_models.py`. A golden run of the model without a mistake is
what each of them is held against, as a user holds a port against the original.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from support.numbers_models import HARMLESS, MISTAKES, batch
from support.numbers_runs import (
    HARMLESS_OPTIONS,
    ROWS,
    in_half,
    options,
    suspects,
    training,
)

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import observed_runs
from poptorch_emu.errors import Error
from poptorch_emu.numbers.run import Direction
from poptorch_emu.numbers.verdicts import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return emulator.record(training(), tmp_path_factory.mktemp("runs") / "golden", *batch(ROWS))


@pytest.fixture(scope="module")
def golden_half(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "golden half"
    return emulator.record(in_half(training()), path, *batch(ROWS))


def is_named(report, mistake):
    """Returns whether a report names the operation of a mistake."""
    module, kind = MISTAKES[mistake]
    return any(
        value.kind == kind and (value.module == module or value.module.startswith(f"{module}."))
        for value in suspects(report)
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_when_a_golden_run_is_there_then_its_operation_is_named(mistake, golden):
    report = emulator.compare(training(mistake), *batch(ROWS), against=golden)
    assert report.verdict is Verdict.DIFFERENT
    assert is_named(report, mistake)
    direction = Direction.BACKWARD if mistake == "gradient stopped" else Direction.FORWARD
    assert report.first.value.direction is direction


# The bias of a norm changes its result by less than float16 may round.
SEEN_IN_HALF = [mistake for mistake in MISTAKES if mistake != "norm without bias"]


# Mistakes that change forward by less than float16 may round, but gradients by more.
BACKWARD_IN_HALF = ("gradient stopped", "norm of another weight", "smoothed labels")


@pytest.mark.parametrize("mistake", SEEN_IN_HALF)
def test_mistake_when_the_model_is_of_half_precision_then_its_operation_is_named(
    mistake, golden_half
):
    report = emulator.compare(in_half(training(mistake)), *batch(ROWS), against=golden_half)
    assert report.verdict is Verdict.DIFFERENT
    assert is_named(report, mistake)
    direction = Direction.BACKWARD if mistake in BACKWARD_IN_HALF else Direction.FORWARD
    assert report.first.value.direction is direction


@pytest.mark.parametrize("change", HARMLESS)
def test_harmless_change_when_a_golden_run_is_there_then_it_is_not_called_different(change, golden):
    report = emulator.compare(training(change), *batch(ROWS), against=golden)
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


class Applied(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x * 2)


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (torch.sin, Verdict.DIFFERENT),
        (lambda x: x.exp() / x.exp().sum(-1, keepdim=True), Verdict.REORDERED),
    ],
    ids=["another", "the same"],
)
def test_output_when_its_operation_is_another_then_it_is_judged_all_the_same(function, verdict):
    x = torch.randn(3, 4)
    ours = poptorch.inferenceModel(Applied(lambda x: x.softmax(-1)))
    report = emulator.compare(ours, x, against=poptorch.inferenceModel(Applied(function)))
    assert report.verdict is verdict


def test_setting_when_nothing_after_it_tells_then_it_is_named_all_the_same():
    def clamped(least):
        return poptorch.inferenceModel(Applied(lambda x: torch.relu(x.clamp(least))))

    x = torch.randn(3, 4)
    report = emulator.compare(clamped(-0.1), x, against=clamped(-0.2))
    assert (report.verdict, report.first.value.kind) == (Verdict.DIFFERENT, "clamp")
    assert "min is -0.1 here and -0.2 there." in str(report)


def test_step_when_only_one_run_has_it_then_it_has_no_counterpart_and_is_not_equal(golden):
    right, other = (
        emulator.compare(training(change), *batch(ROWS), against=golden)
        for change in ("", "mask of infinity")
    )
    assert (right.num_missing, other.num_missing) == (0, 1)
    assert other.num_operations == right.num_operations - 1


def test_lists_then_they_are_as_long_as_they_should_be():
    # Further tests are about other parameters, optimisers and sums, a missing all-reduce, stages,
    # replicas, and the layout of tensors.
    assert len(MISTAKES) >= 38
    assert len(HARMLESS) + len(HARMLESS_OPTIONS) >= 40


def test_weights_when_they_are_others_then_the_parameter_is_named():
    other = training()
    with torch.no_grad():
        other.model.mlp.up.weight[3, 4] += 1e-3
    report = emulator.compare(training(), *batch(ROWS), against=other)
    assert report.verdict is Verdict.DIFFERENT
    assert report.first.value.name == "mlp.up.weight"
    assert report.first.sample.numbers[0][0] == (3, 4)


class Logarithms(torch.nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, x):
        y = (x * x).clamp(min=self.least)
        return torch.log(y).sum(-1) + 1


@pytest.mark.parametrize(("least", "verdict"), [(1e-3, Verdict.EQUAL), (0.0, Verdict.NOT_FINITE)])
def test_numbers_when_they_are_not_finite_then_the_first_operation_is_named(
    least, verdict, tmp_path
):
    x = torch.tensor([[0.5, 0.0], [2.0, 3.0]])
    path = emulator.record(poptorch.inferenceModel(Logarithms(1e-3)), tmp_path / "run", x)
    report = emulator.compare(poptorch.inferenceModel(Logarithms(least)), x, against=path)
    if least:
        assert report.verdict is verdict
    else:
        # The runs first differ at the clamp, and the logarithm is the first result that is not
        # finite.
        assert report.verdict is Verdict.NOT_FINITE
        assert report.first.value.kind == "log"
        assert "This run is not finite here, although the inputs are finite." in str(report)


def test_compare_when_bars_are_shown_then_each_ends_where_it_should(monkeypatch):
    bars = {}

    @contextmanager
    def counting(count, description, is_shown):
        assert is_shown
        bars[description] = [count, 0]

        def on_item():
            bars[description][1] += 1

        yield on_item

    monkeypatch.setattr(observed_runs, "counting", counting)
    opts = options(2).showCompilationProgressBar(True)
    emulator.compare(training(opts=opts), *batch(2 * ROWS))
    assert bars.keys() == {"This run", "Plain PyTorch", "Comparison"}
    assert all(count == done > 0 for count, done in bars.values())


def test_compare_when_it_is_given_something_else_then_the_error_lists_what_it_takes():
    with pytest.raises(TypeError, match="against is of type int; give None, torch.float32"):
        emulator.compare(training(), *batch(ROWS), against=3)


def test_compare_when_there_are_no_inputs_then_the_error_says_so():
    with pytest.raises(Error, match="The model is not compiled, so the shapes"):
        emulator.compare(training())


def test_report_when_it_is_printed_then_it_fits_the_terminal_and_is_text_in_a_notebook(golden):
    report = emulator.compare(training("scale left out"), *batch(ROWS), against=golden)
    lines = str(report).splitlines()
    assert lines[0].startswith("different: this run against golden")
    assert max(map(len, lines)) <= 80
    assert any("numbers_models.py" in line for line in lines)
    assert any("only there: mul in 'attention'" in line for line in lines)
    page = report._repr_html_()
    assert "<table>" in page
    assert "&#x27;attention&#x27;" in page


def test_report_when_a_module_has_a_name_like_markup_then_it_is_shown_as_text():
    model = torch.nn.Sequential()
    model.add_module("<b>\x1b[31m", torch.nn.Linear(2, 2))
    report = emulator.compare(poptorch.inferenceModel(model), torch.ones(1, 2))
    assert "<b>" not in report._repr_html_()
    assert "\x1b" not in str(report)
