"""A fixed tenth of PyTorch's operator and module databases; `make test-ops` tests all entries."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

# PyTorch's own test tools import this package.
pytest.importorskip("expecttest")

from opinfo.cases import cases, names
from opinfo.check import check
from opinfo.document import exceptions
from opinfo.exceptions import DIFFERENT, NOT_ON_CPU, RANDOM, REFUSED, UNSPECIFIED, WITHOUT_OUT

TENTH = names((0, 10))
SAMPLES = 2


@pytest.fixture(autouse=True)
def quiet():
    """Keeps the samples' own warnings out of the output."""
    logging.getLogger("poptorch::python").setLevel(logging.ERROR)


@pytest.mark.feature("Operators", fidelity="exact")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TENTH)
def test_samples_of_an_entry_equal_eager_pytorch_or_are_refused_as_the_table_says(name):
    outcomes = [check(case) for case in cases(name, limit=SAMPLES)]
    failed = [f"{each.case}: {each.detail}" for each in outcomes if each.status == "failed"]
    assert not failed, "\n".join(failed)
    statuses = {each.status for each in outcomes}
    if name in NOT_ON_CPU:
        assert statuses <= {"skipped"}
    else:
        assert "passed" in statuses or (name in REFUSED and "refused" in statuses), statuses


def test_the_table_of_exceptions_names_entries_of_the_databases():
    every = set(names())
    assert every >= set(REFUSED) | RANDOM | UNSPECIFIED | WITHOUT_OUT | set(DIFFERENT)
    assert every >= NOT_ON_CPU
    assert len(every) > 700


def test_the_page_of_operators_shows_the_table_of_exceptions():
    written = Path(__file__).parents[2] / "docs" / "operators.md"
    assert exceptions() in written.read_text(encoding="utf-8"), "python -m opinfo --document"
