"""All plans of random models with random settings agree with each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.random_plans import (
    SYSTEMS,
    built,
    check_laboratory,
    check_parts,
    check_remedies,
    check_sweep,
    random_case,
)

from poptorch_emu import emulator
from poptorch_emu.report.page.lab_view import unpacked

pytestmark = [
    pytest.mark.feature("emulator.what_if", fidelity="modelled"),
    pytest.mark.feature("emulator.summary", fidelity="modelled"),
    pytest.mark.feature("emulator.estimate", fidelity="modelled"),
]


@pytest.mark.parametrize("seed", [0, 2])
def test_points_of_a_sweep_then_are_plans_of_such_models_in_any_order(seed: int) -> None:
    check_sweep(random_case(seed), seed, SYSTEMS[seed % 2])


@pytest.mark.parametrize("seed", range(1))
def test_parts_of_a_step_then_add_up_and_all_name_one_cause(seed: int) -> None:
    check_parts(random_case(100 + seed), SYSTEMS[seed % 2])


def test_changes_that_are_promised_then_keep_it_in_a_new_model() -> None:
    assert sum(check_remedies(random_case(seed), SYSTEMS[0]) for seed in range(200, 201))


def test_page_and_laboratory_then_name_the_cause_of_the_estimate(tmp_path: Path) -> None:
    case = random_case(300)
    plan = emulator.estimate(*built(case), system=SYSTEMS[0])
    sweep = {"accumulation": [case.accumulation, 2 * case.accumulation], "replicas": [1, 2]}
    model, batch = built(case)
    pages = (
        emulator.page(model, batch, path=tmp_path / "page.html", system=SYSTEMS[0]),
        emulator.lab(model, batch, path=tmp_path / "lab.html", system=SYSTEMS[0], sweep=sweep),
    )
    page, lab = (
        json.loads(
            path.read_text("utf-8").partition('id="report-data">')[2].partition("</script>")[0]
        )
        for path in pages
    )
    (lab,) = lab["benches"]
    assert plan.bottleneck in json.dumps(page)
    own = [[str(v) for v in s["values"]].index(str(getattr(case, s["name"]))) for s in
           lab["settings"]]  # fmt: skip
    assert unpacked(lab)[2 * own[0] + own[1]]["limited_by"] == plan.bottleneck
    assert own == lab["start"]


def test_random_choices_of_the_laboratory_then_their_code_has_their_figures() -> None:
    assert check_laboratory(100, SYSTEMS[1]) > 60
