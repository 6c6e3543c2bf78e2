"""The panel of numbers in a real browser, with results of `emulator.numerics`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.page_views import FAINT, NEXT_FRAME, OUTSIDE, show

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.report.page.page_file import read_reports

pytestmark = pytest.mark.feature("emulator.page", fidelity="modelled")


class Overflowing(torch.nn.Module):
    """Has gradients that underflow, and beside its loss a sum that overflows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor, target: torch.Tensor):
        beside = (x * 400).square().sum(-1)
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return beside, torch.nn.functional.cross_entropy(x.float(), target)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("page") / "model.html"
    model = Overflowing().half()
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1e-3)
    training = poptorch.trainingModel(model, options, optimizer)
    inputs = torch.rand(8, 16).half(), torch.arange(8)
    found = emulator.numerics(training, *inputs)
    (report,) = read_reports(emulator.page(training, *inputs, path=path, numerics=found))
    return report


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_numbers_when_shown_then_nothing_leaves_its_card_and_all_can_be_read(
    open_page: Any, data: dict[str, Any], width: int, scheme: str
) -> None:
    page = open_page(data, {**data, "numbers": None}, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for number in range(2):
        page.click(f"#report-switch button >> nth={number}")
        show(page, "numbers")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(FAINT) == []


def test_operations_when_an_error_is_infinite_then_it_stands_first_and_says_so(
    open_page: Any, data: dict[str, Any]
) -> None:
    page = open_page(data)
    show(page, "numbers")

    def errors() -> list[str]:
        at = page.locator("main thead th button").all_inner_texts()
        column = next(number for number, name in enumerate(at) if name.startswith("Error"))
        rows = page.locator("main table tbody tr").all()
        return [row.locator("td").nth(column).inner_text() for row in rows]

    assert errors()[0] == "infinite"
    known = [float(text) for text in errors() if text not in ("infinite", "not known")]
    assert known == sorted(known, reverse=True) and len(known) > 10
    page.click("main thead button[data-sort=error]")
    page.evaluate(NEXT_FRAME)
    assert [text for text in errors() if text != "not known"][-1] == "infinite"


def test_shares_and_powers_then_have_the_form_that_the_sentences_have(
    open_page: Any, data: dict[str, Any]
) -> None:
    page = open_page(data)
    show(page, "numbers")
    text = page.inner_text("main")
    assert " % underflow with loss scale 1" in text and "Give the optimizer loss_scaling=" in text
    drawn = page.evaluate("() => [0, 0.0001, 0.012, 0.456, 1].map(lostText)")
    assert drawn == ["0 %", "< 0.1 %", "1.2 %", "46 %", "100 %"]
    assert page.evaluate("() => [-24, 0, 15].map(powerText)") == ["2⁻²⁴", "2⁰", "2¹⁵"]
    formats = """() => [...document.querySelectorAll('main .chart')].map((host) => {
      const { xAxis, yAxis } = echarts.getInstanceByDom(host).getOption();
      return [xAxis[0].axisLabel.formatter(-3), yAxis[0].axisLabel.formatter(0.5)];
    })"""
    assert page.evaluate(formats) == [["2⁻³", "50 %"]] * 2
