"""Sentences about a report, with numbers that were computed by hand."""

from __future__ import annotations

from typing import Any

from support.synthetic_reports import report

from poptorch_emu.report.page.insights import insights


def texts(data: dict[str, Any], kind: str | None = None) -> str:
    return "\n".join(line["text"] for line in insights(data) if kind in (None, line["kind"]))


def test_memory_when_over_the_limit_then_the_excess_and_the_cause_are_told() -> None:
    data = report()
    data["ipus"][2]["fullest_tile_bytes"] = 700 * 1024
    problem = texts(data, "problem")
    assert "IPU 2 needs 700 KiB on its fullest tile, 76 KiB more than the 624 KiB" in problem
    assert "largest part, 122 KiB, is temporary" in problem


def test_memory_when_just_at_the_limit_then_it_is_a_warning_and_no_problem() -> None:
    data = report()
    data["ipus"][2]["fullest_tile_bytes"] = 624 * 1024
    assert not texts(data, "problem")
    assert "IPU 2 is 100.0% full: 0 KiB are left" in texts(data, "warning")


def test_advice_when_given_then_stands_behind_full_tiles_and_before_the_rest() -> None:
    data = report()
    data["ipus"][2]["fullest_tile_bytes"] = 700 * 1024
    advice = [
        {"kind": "problem", "text": "do this", "code": "options.deviceIterations(2)"},
        {"kind": "warning", "text": "then that", "code": None},
    ]
    found = insights(data, advice)
    assert [one["kind"] for one in found[:3]] == ["problem", "problem", "warning"]
    assert found[1] == advice[0] and found[2] == advice[1]


def test_operations_when_some_costs_are_unknown_then_their_number_is_told() -> None:
    assert "The cost of 2 of 24 operations is not known" in texts(report(num_operations=24))


def test_report_when_nothing_is_known_then_nothing_is_claimed() -> None:
    data = report()
    data.update(ipus=[], operations={}, memory={"ipus": [], "ways_out": []})
    data["speed"] = dict.fromkeys(data["speed"])
    assert texts(data) == "The throughput cannot be predicted: too many costs are unknown."
