"""Each exercise of the laboratory has a solution, its start is none, and wrong choices say why."""

from __future__ import annotations

from typing import Any

import pytest

from poptorch_emu import emulator
from poptorch_emu.emulator.course.placing import SYSTEM, half_layers, plain_options
from poptorch_emu.emulator.lab_exercises import EXERCISES, exercise_benches
from poptorch_emu.report.page.lab_view import unpacked

pytestmark = pytest.mark.feature("emulator.lab", fidelity="modelled")


@pytest.fixture(scope="module")
def benches() -> list[tuple[dict[str, Any], dict[tuple[str, ...], dict[str, Any]]]]:
    """Each bench, and its points by the texts of their values."""
    return [(bench, dict(_by_values(bench))) for bench in exercise_benches()]


def _by_values(bench: dict[str, Any]) -> Any:
    for place, point in unpacked(bench).items():
        texts = []
        for setting in reversed(bench["settings"]):
            place, index = divmod(place, len(setting["values"]))
            texts.append(setting["values"][index])
        yield tuple(reversed(texts)), point


def test_exercises_then_each_has_a_solution_and_the_start_is_none(benches: Any) -> None:
    assert len(benches) == len(EXERCISES)
    for bench, points in benches:
        verdicts = [point["verdict"] for point in points.values() if "verdict" in point]
        right = [verdict for verdict in verdicts if not verdict["faults"]]
        assert 0 < len(right) < len(verdicts) / 4, bench["title"]
        assert all(verdict["reason"].startswith("Right") for verdict in right)
        assert not any(verdict["reason"] for verdict in verdicts if verdict["faults"])
        start = tuple(
            setting["values"][at]
            for setting, at in zip(bench["settings"], bench["start"], strict=True)
        )
        assert points[start]["verdict"]["faults"], bench["title"]


def test_split_when_planned_then_it_solves_the_second_exercise(benches: Any) -> None:
    _, points = benches[1]
    options = plain_options(8).enableSyntheticData(True)
    hidden = (512, 512, 512, 512, 1024, 1024, 4096, 4096)
    wrapped = half_layers(hidden, 512, 256 * 8, options, (0, 0, 1, 1, 2, 2, 3, 3))
    split = emulator.plan_split(*wrapped, num_ipus=4, system=SYSTEM)
    counts = tuple(str(len(stage.units)) for stage in split.stages)
    assert not points[counts[:3]]["verdict"]["faults"]
    assert "poptorch.Stage('layer0'" in points[counts[:3]]["code"]
    assert "no layer" in points["5", "5", "5"]["fault"]
    assert "another split gives" in points["2", "2", "2"]["verdict"]["faults"][0]


def test_schedule_when_the_reason_is_wrong_then_the_third_exercise_says_so(benches: Any) -> None:
    bench, points = benches[2]
    whys = bench["settings"][1]["values"]
    right = next(values for values, point in points.items() if not point["verdict"]["faults"])
    for why in whys:
        (fault,) = points[right[0], why]["verdict"]["faults"] or [""]
        assert bool(fault) == (why != right[1])
