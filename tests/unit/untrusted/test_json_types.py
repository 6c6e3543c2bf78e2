"""Types of values read from JSON: the first fault is named, with its place."""

from __future__ import annotations

import pytest

from poptorch_emu.untrusted.json_types import AMOUNT, COUNT, NUMBER, type_fault

ROW = {"name": str, "sizes": [int], "pair": [str, int], "of": ({str: [COUNT]}, None)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, int),
        (None, (str, None)),
        (1.5, NUMBER),
        (0, AMOUNT),
        ([], [int]),
        (["a", 1], [str, int]),
        ({"name": "a", "more": 1}, {"name": str}),
        ({"any": [1], "name": []}, {str: [int]}),
        ({"name": "a", "sizes": [1, 2], "pair": ["b", 3], "of": None}, ROW),
        ({"name": "a", "sizes": [], "pair": ["b", 3], "of": {"x": [1]}}, ROW),
    ],
)
def test_value_of_the_types_then_has_no_fault(value, expected) -> None:
    assert type_fault(value, expected, "it") == ""


@pytest.mark.parametrize(
    ("value", "expected", "fault"),
    [
        (True, int, "it is True, not int"),
        (1, bool, "it is 1, not bool"),
        (float("nan"), NUMBER, "it is nan, not a finite number"),
        (2**63, NUMBER, "not a finite number"),
        (10**400, AMOUNT, "not a finite number from 0 on"),
        (-1, COUNT, "it is -1, not a whole number from 0 on"),
        (1, (str, None), "it is 1, not str or null"),
        ([1, "a"], [int], "it[1] is 'a', not int"),
        (["a"], [str, int], "it is ['a'], not a list"),
        ({}, [int], "it is {}, not a list"),
        ([], {"name": str}, "it is [], not an object"),
        ({}, {"name": str, "more": int}, "it has no name, more"),
        ({"x": 1}, {str: str}, "it.'x' is 1, not str"),
        ({"name": "a", "sizes": [1], "pair": ["b", "c"], "of": None}, ROW, "it.pair[1] is 'c'"),
        ({"name": "a", "sizes": [], "pair": ["b", 1], "of": {"x": [-1]}}, ROW, "it.of.'x'[0] is"),
    ],
)
def test_value_of_another_type_then_the_fault_names_its_place(value, expected, fault) -> None:
    assert fault in type_fault(value, expected, "it")


def test_fault_of_a_large_value_then_is_short() -> None:
    assert len(type_fault("x" * 10_000, int, "it")) < 100
    assert len(type_fault([[0] * 10_000] * 100, [int], "it")) < 200
