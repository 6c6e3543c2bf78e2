"""The version is stored in one place, and agrees with the changelog."""

import re
import runpy
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The version is read, not imported, because the engine need not be built in the source tree.
__version__ = runpy.run_path(str(ROOT / "poptorch_emu/version.py"))["__version__"]
HEADING = re.compile(r"^## (\d+\.\d+\.\d+), (not released yet|\d{4}-\d\d-\d\d)$")


def headings() -> list[tuple[str, str]]:
    """Returns version and date of each section of the changelog."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    found = [(line, HEADING.match(line)) for line in lines if line.startswith("## ")]
    assert [line for line, match in found if match is None] == []
    return [(match[1], match[2]) for _, match in found if match is not None]


def test_changelog_then_begins_with_this_version_and_older_ones_have_dates() -> None:
    (version, _), *older = headings()
    assert version == __version__
    days = [date.fromisoformat(day) for _, day in older]
    assert days == sorted(days, reverse=True)


def test_version_then_no_other_file_of_the_project_says_it() -> None:
    names = ["pyproject.toml", "setup.py", "CITATION.cff", "README.md", "docs/getting_started.md"]
    found = [
        n
        for n in names
        if re.search(r"\b" + re.escape(__version__) + r"\b", (ROOT / n).read_text())
    ]
    assert found == []
