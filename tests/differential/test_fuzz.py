"""A few seeds of each kind of random check; `make fuzz` tries as many as there is time for."""

from __future__ import annotations

import pytest
from fuzz.checks import CHECKS, check

SEEDS = range(4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CHECKS)
def test_case_of_a_seed_then_holds(kind: str, seed: int) -> None:
    assert check(kind, seed) in ("passed", "refused")


@pytest.mark.parametrize("kind", ["inference", "files"])
def test_case_of_a_seed_when_drawn_again_then_is_the_same(kind: str) -> None:
    assert CHECKS[kind](3) == CHECKS[kind](3)
