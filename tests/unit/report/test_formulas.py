"""Texts of the formulas in the laboratory; `tests/properties/test_plans.py` checks their values."""

from __future__ import annotations

import pytest

from poptorch_emu.report.formulas import Formula, quantity


def test_formula_then_words_and_numbers_have_its_terms() -> None:
    terms = {"micro_batches": 8, "stages": 4}
    slots = Formula("Slots", "micro_batches + 2 * stages - 2", terms, 14, "slots")
    assert slots.words == "micro-batches + 2 × stages − 2"
    assert slots.numbers == "8 + 2 × 4 − 2 = 14 slots" and slots.result == "14 slots"
    work = {"work0": 0.002, "work1": 0.0015, "time": 0.0025, "ipus": 2}
    units = {"work0": "s", "work1": "s", "time": "s"}
    bubble = Formula("Bubble", "1 - (work0 + work1) / (ipus * time)", work, 0.3, "share", units)
    assert bubble.words == "1 − (work 0 + work 1) / (ipus × time)"
    assert bubble.numbers == "1 − (2 ms + 1.5 ms) / (2 × 2.5 ms) = 30.0 %"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 ns"),
        (1.0, "s", "1 s"),
        (0.00123456, "s", "1.23 ms"),
        (1024.0, "B", "1 KiB"),
        (1023.0, "B", "1,023 B"),
        (1.5 * 2**20, "B", "1.5 MiB"),
        (64e9, "B/s", "64 GB/s"),
        (12345.6, "rows/s", "12,346 rows/s"),
        (0.125, "share", "12.5 %"),
        (3.0, "", "3"),
    ],
)
def test_quantity_then_it_has_a_unit_that_suits_it(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
