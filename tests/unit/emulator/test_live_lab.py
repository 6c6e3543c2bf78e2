"""The live laboratory plans each combination of its values when the page asks for it."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.emulator_values import training
from support.random_plans import SYSTEMS, Case, built

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.report.page.lab_view import unpacked

pytestmark = pytest.mark.feature("emulator.live_lab", fidelity="modelled")

CASE = Case((16,) * 5, (0, 0, 1, 1), 4, 8, 1, 1, "grouped", is_adam=True)


def bench_of(text: str) -> dict[str, Any]:
    """Returns the only bench of a page."""
    data = json.loads(text.partition('id="report-data">')[2].partition("</script>")[0])
    (bench,) = data["benches"]
    return bench


def opened(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as response:
        return response.read().decode()


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Any]:
    model, batch = built(CASE)
    with emulator.live_lab(model, batch, system=SYSTEMS[0]) as running:
        yield running


def test_controls_then_have_fine_values_with_those_of_the_model(laboratory: Any) -> None:
    bench = bench_of(opened(laboratory.address))
    values = {each["name"]: each["values"] for each in bench["settings"]}
    chosen = {
        each["name"]: each["values"][at]
        for each, at in zip(bench["settings"], bench["start"], strict=True)
    }
    assert chosen == {
        "num_ipus": "2", "schedule": "grouped", "micro_batch": "4", "accumulation": "8",
        "recomputation": "pipeline", "offload": "nothing", "replicas": "1", "system": SYSTEMS[0],
    }  # fmt: skip
    for name, end in {
        "num_ipus": 8,
        "accumulation": 128,
        "replicas": 16,
        "micro_batch": 64,
    }.items():
        assert values[name] == [str(number) for number in range(1, end + 1)]
    assert "weight+optimizer" in values["offload"] and len(set(values["offload"])) == 16
    assert {"standard", "norm_only", "all"} < set(values["recomputation"])
    assert {"mk1-pod16", "bow-pod64", "c600"} < set(values["system"])
    assert bench["is_live"] and bench["places"] == []


def test_settings_of_large_numbers_then_steps_are_even_and_include_the_models_own() -> None:
    case = Case((16, 16), (0,), 1000, 999, 1, 1, "grouped", is_adam=False)
    with emulator.live_lab(*built(case)) as running:
        bench = bench_of(opened(running.address))
    for setting, at in zip(bench["settings"], bench["start"], strict=True):
        assert len(setting["values"]) <= 130
        if setting["name"] == "accumulation":
            assert setting["values"][:2] == ["16", "32"] and setting["values"][at] == "999"


def test_choices_then_equal_the_page_with_all_plans(tmp_path: Path) -> None:
    sweep = {"accumulation": [4, 8], "num_ipus": [1, 2, 8], "offload": ["weight"]}
    model, batch = built(CASE)
    page = emulator.lab(model, batch, path=tmp_path / "lab.html", sweep=sweep)
    held = list(unpacked(bench_of(page.read_text(encoding="utf-8"))).values())
    choices = itertools.product(*(range(len(values)) for values in sweep.values()))
    with emulator.live_lab(model, batch, sweep=sweep) as running:
        asked = [json.loads(opened(running.address + ".".join(map(str, at)))) for at in choices]
    assert asked == held
    assert any(point["fault"] for point in asked) and not all(point["fault"] for point in asked)


@pytest.mark.parametrize(
    "question", ["0", "0.0.0.0.0.0.0.0.0", "0.0.0.0.0.0.0.99", "-1.0", "0.x", "."]
)
def test_choice_that_is_none_then_is_refused(laboratory: Any, question: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        opened(laboratory.address + question)


def test_laboratory_when_shown_then_it_has_its_address_until_it_is_stopped() -> None:
    with emulator.live_lab(training(), sweep={"accumulation": [8]}) as running:
        assert running.address in str(running)
        markup = running._repr_html_()
        assert (
            f'<iframe src="{running.address}" sandbox="allow-scripts allow-same-origin"' in markup
        )
        threading.Timer(0.1, running.stop).start()
        running.wait()
    assert "stopped" in str(running) and running._repr_html_().startswith("<code>")
    with pytest.raises(urllib.error.URLError):
        opened(running.address)


def test_what_cannot_be_planned_then_is_refused_before_anything_is_served() -> None:
    with pytest.raises(TypeError, match="must be wrapped"):
        emulator.live_lab(torch.nn.ReLU(), torch.ones(1))
    with pytest.raises(poptorch.Error, match="accumulation"):
        emulator.live_lab(training(), sweep={"accumulations": [1]})
