"""Writes the table of docs/guide/todays_models.md from benchmarks/results/zoo.csv."""

from __future__ import annotations

import csv

import marked_tables

DOCUMENT = marked_tables.ROOT / "docs" / "guide" / "todays_models.md"
RESULTS = marked_tables.ROOT / "benchmarks" / "results" / "zoo.csv"

Row = dict[str, str]


def cells(rows: list[Row], way: str) -> list[str]:
    """Returns the number of compared models, and those that run as they are and with guards."""
    kinds = [row for row in rows if row[way] and not row[way].startswith("not compared")]
    plain = sum(row[way] == "equal" for row in kinds)
    guarded = sum("equal" in (row[way], row[f"{way}_guarded"]) for row in kinds)
    return [str(len(kinds)), *(f"{100 * n // max(len(kinds), 1)} %" for n in (plain, guarded))]


def table(rows: list[Row]) -> str:
    """Returns a row for each library of a sweep."""
    columns = [f"{way}: {part}" for way in ("inference", "training") for part in _PARTS]
    lines = [f"| Library | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for library, version in dict.fromkeys((row["library"], row["version"]) for row in rows):
        own = [row for row in rows if row["library"] == library]
        found = [*cells(own, "inference"), *cells(own, "training")]
        lines.append(f"| {library} {version} | {' | '.join(found)} |")
    dates = sorted({row["date"] for row in rows})
    return "\n".join([f"Measured: slices of {' and '.join(dates)}.", "", *lines])


_PARTS = ("models", "as they are", "with guards")


def current(document: str) -> str:
    """Returns a document with the table of the stored sweep."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return marked_tables.with_table(document, "zoo", table(rows))


if __name__ == "__main__":
    marked_tables.run(DOCUMENT, "Writes the table of docs/guide/todays_models.md.", current)
