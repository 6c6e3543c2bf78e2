"""Sentences about a report; their numbers are worked out here by hand."""

from __future__ import annotations

from typing import Any

from support.synthetic_reports import report

from poptorch_emu.report.page.insights import insights


def texts(data: dict[str, Any], kind: str | None = None) -> str:
    return "\n".join(line["text"] for line in insights(data) if kind in (None, line["kind"]))


def test_memory_when_over_the_limit_then_the_excess_the_cause_and_a_way_out_are_told() -> None:
    data = report()
    data["ipus"][2]["fullest_tile_bytes"] = 700 * 1024
    problem = texts(data, "problem")
    assert "IPU 2 needs 700 KiB on its fullest tile, 76 KiB more than the 624 KiB" in problem
    assert "largest part is temporary with 122 KiB" in problem
    assert "recompute layers 3 to 5 would save 88 KiB" in problem


def test_memory_when_just_at_the_limit_then_it_is_a_warning_and_no_problem() -> None:
    data = report()
    data["ipus"][2]["fullest_tile_bytes"] = 624 * 1024
    assert not texts(data, "problem")
    assert "IPU 2 is 100.0% full: 0 KiB are left" in texts(data, "warning")


def test_balance_when_one_ipu_is_busier_then_the_best_block_to_move_is_named() -> None:
    data = report()
    for ipu in data["ipus"]:
        ipu["parts"] = {"compute": 4.0 if ipu["ipu"] == 2 else 2.0, "bubble": 0.0}
    data["operations"] = {
        "ipu": [0, 1, 2, 2, 2, 3],
        "block": ["layer0", "layer3", "layer6", "layer7", "layer8", "layer9"],
        "cycles": [100, 100, 50, 100, 50, 100],
        "family": ["product"] * 6,
        "name": [f"mm_{number}" for number in range(6)],
        "segment": ["forward 0"] * 6,
        "source": [None] * 6,
        "is_recomputed": [False] * 6,
    }
    # The mean is 2.5 s; a quarter of IPU 2's 4 s moves, and 3 s are 1.2 times the mean.
    assert (
        "IPU 2 is 1.60 × as busy as the mean of the IPUs; moving block layer6 to IPU 1 would "
        "bring the busiest to about 1.20 ×." in texts(data, "warning")
    )


def test_waiting_when_much_then_its_share_is_told() -> None:
    data = report()
    for ipu in data["ipus"]:
        ipu["parts"] = {"compute": 3.0, "bubble": 1.0}
    assert "25.0% of the IPUs' time is spent waiting for other IPUs" in texts(data)
    for ipu in data["ipus"]:
        ipu["parts"] = {"compute": 9.0, "bubble": 1.0}
    assert "waiting for other IPUs" not in texts(data)


def test_operations_when_some_costs_are_unknown_then_their_number_is_told() -> None:
    assert "The cost of 2 of 24 operations is not known" in texts(report(num_operations=24))


def test_report_when_nothing_is_known_then_nothing_is_claimed() -> None:
    data = report()
    data.update(ipus=[], operations={}, memory={"ipus": [], "ways_out": []})
    data["speed"] = dict.fromkeys(data["speed"])
    assert texts(data) == "Too much is unknown to predict a throughput."
