"""`emulator.numerics`: losses of half precision, against a float64 loop of plain PyTorch."""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.numbers.magnitudes import Magnitudes, TypeRange
from poptorch_emu.numbers.run import Direction
from poptorch_emu.report.page.page_file import read_reports

pytestmark = pytest.mark.feature("emulator.numerics", fidelity="exact")

HALF = TypeRange.of(torch.float16)


class Deep(torch.nn.Module):
    """A chain of sigmoids, each of which makes the gradient smaller."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(5))
        self.out = torch.nn.Linear(32, 10)

    def forward(self, x, target):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        # The plain loop uses double precision, all other runs use single precision.
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.nn.functional.cross_entropy(self.out(x).to(wide), target)


def batch(rows=16):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, 32, generator=generator).half()
    return x, torch.randint(10, (rows,), generator=generator)


def options(accumulation=2):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(accumulation)
    return opts


def training(model, opts=None, lr=1e-3, **settings):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=lr, **settings)
    return poptorch.trainingModel(model, opts or options(), optimizer)


@pytest.fixture(scope="module")
def report():
    return emulator.numerics(training(Deep().half()), *batch())


def plain_gradients(model, x, target, micro_batches=2):
    """Returns the gradients of each micro-batch, in float64, by the names of the weights."""
    wide = copy.deepcopy(model).double()
    found = {name: [] for name, _ in wide.named_parameters()}
    for rows, labels in zip(x.chunk(micro_batches), target.chunk(micro_batches), strict=True):
        loss = wide(rows.double(), labels)
        gradients = torch.autograd.grad(loss, [*wide.parameters()])
        for name, gradient in zip(found, gradients, strict=True):
            found[name].append(gradient)
    return found


def test_gradients_then_magnitudes_are_those_of_plain_pytorch_in_float64(report):
    expected = plain_gradients(Deep().half(), *batch())
    rows = {each.value.name: each for each in report.operations if each.value.name}
    for name, gradients in expected.items():
        found, numbers = rows[f"gradient of {name}"], Magnitudes.of(torch.stack(gradients))
        # A sum in another order may round a number across a power of two.
        differing = sum(
            abs(found.magnitudes.counts.get(e, 0) - numbers.counts.get(e, 0))
            for e in found.magnitudes.counts.keys() | numbers.counts.keys()
        )
        assert differing <= 0.01 * numbers.num_nonzero + 2
        assert found.magnitudes.largest == pytest.approx(numbers.largest, rel=1e-6)
        assert found.flushed == pytest.approx(numbers.flushed(HALF), abs=0.01)
        assert found.is_scaled


def test_error_then_it_is_that_of_the_run_against_float64(report):
    model, data = Deep().half(), batch()
    rows = {each.value.name: each for each in report.operations if each.value.name}
    found = rows["gradient of out.weight"]
    exact = torch.stack(plain_gradients(model, *data)["out.weight"])
    short = []
    for x, target in zip(*(each.chunk(2) for each in data), strict=True):
        short.append(torch.autograd.grad(model(x, target), model.out.weight)[0].double())
    expected = ((torch.stack(short) - exact).norm() / exact.norm()).item()
    assert found.error == pytest.approx(expected, rel=0.5)
    assert rows["layers.0.weight"].error == 0.0


def test_loss_scale_then_the_best_one_loses_least_of_the_gradients(report):
    best, of_first = report.best, report.gradients[0]
    assert of_first.module in ("layers.0", "layers.1")
    assert of_first.at_one == of_first.at_present > 0.5
    assert of_first.at_best < 0.02
    held = [each for each in report.scales if not each.overflow]
    assert best.underflow <= min(each.underflow for each in held) + 1e-3
    pattern = (
        r"Of the gradients of layers.[01], [\d.]+ % underflow with loss scale 1 and [\d.]+ % with "
        r"2[⁰¹²³⁴⁵⁶⁷⁸⁹]+\."
    )
    assert re.search(pattern, report.sentences[1])
    assert f"Give the optimizer loss_scaling={best.scale:g}, which" in report.suggestions[0]


def test_loss_scale_when_the_run_has_the_best_one_then_it_is_kept(report):
    scale = report.best.scale
    scaled = emulator.numerics(training(Deep().half(), loss_scaling=scale), *batch())
    assert (scaled.best, scaled.loss_scaling) == (report.best, scale)
    assert scaled.gradients[0].at_one == pytest.approx(report.gradients[0].at_one, abs=1e-3)
    assert scaled.gradients[0].at_present == pytest.approx(report.gradients[0].at_best, abs=1e-3)
    assert "- Keep the loss scale. " in str(scaled)
    errors = [
        {each.value.name: each.error for each in found.operations}["gradient of layers.0.weight"]
        for found in (report, scaled)
    ]
    assert errors[1] < 0.1 * errors[0]


def test_loss_scale_when_it_is_no_power_of_two_then_it_is_taken_as_it_is(report):
    scale = 181.0  # Between 2**7 and 2**8.
    found = emulator.numerics(training(Deep().half(), loss_scaling=scale), *batch())
    at_one = {each.module: each.at_one for each in report.gradients}
    assert {each.module: each.at_one for each in found.gradients} == pytest.approx(at_one, abs=1e-3)
    shares = [(each.underflow, each.overflow) for each in found.scales]
    assert shares == [pytest.approx((s.underflow, s.overflow), abs=1e-3) for s in report.scales]
    sizes = report.scaled_gradients
    with_it = sum(count for e, count in sizes.counts.items() if e + 7 < HALF.normal)
    less = sum(count for e, count in sizes.counts.items() if e + 8 < HALF.normal)
    assert less < found.scaled_gradients.underflow(HALF) * sizes.num_nonzero < with_it


def test_updates_then_the_share_is_that_of_plain_rounding(report):
    model, data = Deep().half(), batch()
    gradients = plain_gradients(model, *data)
    lost = {each.name: each.lost for each in report.updates}
    for name, weight in model.named_parameters():
        mean = torch.stack(gradients[name]).mean(0)
        exact = weight.detach().double() - 1e-3 * mean
        is_changed = exact != weight.double()
        is_lost = is_changed & (exact.half() == weight)
        expected = (is_lost.sum() / is_changed.sum().clamp(min=1)).item()
        assert lost[name] == pytest.approx(expected, abs=0.02)
    text = " ".join(report.suggestions)
    assert "enableStochasticRounding(True), or use float32 weights" in text


def test_updates_when_they_are_large_then_rounding_to_the_nearest_is_enough():
    # The bias is zero, so that float16 keeps any update of it.
    model = torch.nn.Linear(4, 1).half()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return poptorch.identity_loss((self.model(x).float() - 1).square(), "mean")

    report = emulator.numerics(training(Loss(), lr=0.1), torch.ones(2, 4).half())
    assert [each.lost for each in report.updates] == [0.0, 0.0]
    assert "Round weights to the nearest." in str(report)


def test_updates_when_weights_are_rounded_at_random_then_it_stays_on():
    opts = options()
    opts.Precision.enableStochasticRounding(True)
    report = emulator.numerics(training(Deep().half(), opts), *batch())
    assert report.rounds_stochastically
    assert "Keep stochastic rounding on." in str(report).replace("\n  ", " ")


class Squares(torch.nn.Module):
    """A model that overflows in float16, and subtracts large numbers that are nearly equal."""

    def forward(self, x):
        return (x * x).sum(-1), x - x.mean(-1, keepdim=True)


def test_operations_when_they_overflow_or_cancel_then_float32_is_suggested():
    x = 100 + torch.rand(4, 256)
    report = emulator.numerics(poptorch.inferenceModel(Squares()), x.half())
    kept = {each.value.kind: each for each in report.to_keep_wide()}
    assert kept.keys() == {"sum", "sub"}
    assert (kept["sum"].overflow, kept["sum"].error) == (1.0, math.inf)
    assert kept["sub"].error > 1e-2 > 1e-3 > kept["sub"].input_error
    assert any("emulator.first_nonfinite names" in each for each in report.sentences)


def test_model_when_it_is_in_float32_then_float16_is_supposed():
    x = 100 + torch.rand(4, 256)
    report = emulator.numerics(poptorch.inferenceModel(Squares()), x)
    assert report.is_supposed
    assert [each.value.kind for each in report.to_keep_wide()] == ["sum"]
    assert max(each.error for each in report.operations) < 1e-4
    assert str(report).startswith("The model has no half precision (loss scale 1). Shares are")


def test_operations_then_all_directions_and_modules_are_there(report):
    directions = {each.value.direction for each in report.operations}
    assert directions == set(Direction)
    modules = {each.value.module for each in report.operations}
    assert modules >= {f"layers.{number}" for number in range(5)} | {"out"}


def test_numerics_when_there_are_dropout_loops_and_host_calls_then_the_run_is_followed():
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.host = poptorch.CPU(lambda x: x + 1, "host")

        def forward(self, x, target):
            x = torch.nn.functional.dropout(self.linear(x), 0.5)
            x = poptorch.for_loop(2, lambda y: (y * 1.5,), [x])[0]
            return torch.nn.functional.mse_loss(x.float(), target)

    model = Mixed().half()
    report = emulator.numerics(training(model), torch.rand(4, 8).half(), torch.rand(4, 8))
    kinds = {each.value.kind: each.error for each in report.operations}
    assert kinds["addmm" if "addmm" in kinds else "linear"] < 1e-3
    # Dropout must drop the same elements; otherwise its error would be large.
    assert kinds["dropout"] < 1e-3


def test_numerics_then_the_model_stays_as_it_is():
    twins = [training(Deep().half()), training(Deep().half())]
    emulator.numerics(twins[0], *batch())
    losses = [[twin(*batch()) for _ in range(2)] for twin in twins]
    torch.testing.assert_close(losses[0], losses[1], rtol=0.0, atol=0.0)


def test_report_then_it_fits_a_terminal_and_names_are_text(report):
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("float16 is compared with a float64 reference: ")
    page = report._repr_html_()
    assert "<table>" in page and "layers.0" in page
    model = torch.nn.Sequential()
    model.add_module("<b>", torch.nn.Linear(2, 2))
    inference = poptorch.inferenceModel(model.half())
    assert "<b>" not in emulator.numerics(inference, torch.ones(1, 2).half())._repr_html_()


def test_plot_then_each_direction_has_a_histogram_whose_shares_are_one(report):
    pytest.importorskip("matplotlib").use("agg")
    axes = report.plot()
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert lines.keys() == {direction.value for direction in Direction}
    assert all(sum(shares) == pytest.approx(1.0) for shares in lines.values())
    low, high = axes.get_xlim()
    assert low < HALF.zero and high > HALF.overflow


def test_numerics_when_the_model_is_not_wrapped_then_the_error_says_how():
    with pytest.raises(TypeError, match="The model must be wrapped"):
        emulator.numerics(Deep(), *batch())


def test_page_when_it_is_given_numerics_then_it_holds_them(report, tmp_path):
    model = training(Deep().half())
    path = emulator.page(model, *batch(), path=tmp_path / "page.html", numerics=report)
    (view,) = read_reports(path)
    numbers = view["numbers"]
    assert numbers["sentences"] == list(report.sentences)
    assert len(numbers["operations"]["name"]) == len(report.operations)
    assert numbers["best"] == report.best.exponent
    assert [each["name"] for each in numbers["histograms"]] == [d.value for d in Direction]


def test_page_when_it_is_not_then_numbers_are_not_known(tmp_path):
    inference = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    path = emulator.page(inference, torch.ones(1, 2), path=tmp_path / "page.html")
    assert read_reports(path)[0]["numbers"] is None
