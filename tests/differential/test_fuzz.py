"""A few seeds of each kind of random check; `make fuzz` tries more for as long as it may run."""

from __future__ import annotations

import pytest
from fuzz.checks import CHECKS, check
from fuzz.reports import check_reports

SEEDS = range(4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CHECKS)
def test_case_of_a_seed_then_holds(kind: str, seed: int) -> None:
    assert check(kind, seed) in ("passed", "refused")


@pytest.mark.parametrize("kind", ["inference", "files", "reports"])
def test_case_of_a_seed_when_drawn_again_then_is_the_same(kind: str) -> None:
    assert CHECKS[kind](3) == CHECKS[kind](3)


@pytest.mark.filterwarnings("ignore")
def test_reports_when_damaged_or_forged_then_are_read_or_refused_with_one_error() -> None:
    for seed in range(100):
        check_reports(seed)
