"""Writes the tables of docs/fidelity.md, and its picture, from the runs in benchmarks/results.

`benchmarks/fidelity.py --csv --constants` writes the files of these runs. The records of constants
and the spreads of intervals are those of the package.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Callable, Sequence

import fidelity_picture
import marked_tables

from poptorch_emu.machine.spread import SPREADS, Subject, spread
from poptorch_emu.machine.time_numbers import CONSTANTS, NUMBERS

DOCUMENT = marked_tables.ROOT / "docs" / "fidelity.md"
PICTURE = marked_tables.ROOT / "docs" / "figures" / "fidelity.svg"
RESULTS = marked_tables.ROOT / "benchmarks" / "results"
_KIB = 1024

Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    """Returns the rows of `benchmarks/results/fidelity_<name>.csv`."""
    with (RESULTS / f"fidelity_{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def error_of(row: Row) -> float:
    """Returns the relative error of a row's prediction; positive if it is too high."""
    return float(row["predicted"]) / float(row["published"]) - 1


def memory() -> str:
    """Returns verdicts, bytes and, in brackets, their ratios to published bytes."""
    columns = (("total_bytes", 1e6), ("fullest_tile_bytes", _KIB))
    lines = []
    for row in rows_of("memory"):
        cells = [_beside(row[name], row[f"published_{name}"], unit) for name, unit in columns]
        likely = " to ".join(f"{int(limit) / _KIB:.0f}" for limit in row["likely"].split(" to "))
        words = row["row"], row["model"], row["published"], row["predicted"]
        lines.append([*words, *cells, likely])
    head = ["row", "model", "published", "predicted"]
    head += ["total MB", "fullest tile KiB", "likely KiB"]
    return _table(head, "---|---|---|---|---:|---:|---:", lines)


def _beside(found: str, published: str, unit: float) -> str:
    text = f"{float(found) / unit:,.1f}"
    return f"{text} ({float(found) / float(published):.2f})" if published else text


def spread_of(row: Row) -> float:
    """Returns the logarithm of the factor of a prediction's interval, from the row's shares."""
    return spread({each: float(row.get(each.name.lower(), 0.0)) for each in Subject})


def accuracy() -> str:
    """Returns errors in cross-validation by kind, and a summary of all rows."""
    rows, kept = rows_of("cross_validation"), {row["row"]: row for row in rows_of("time")}
    names = [*dict.fromkeys(row["kind"] for row in rows), "all"]
    lines = []
    for name in names:
        own = [row for row in rows if name in ("all", row["kind"])]
        held = [abs(float(row["error"])) for row in own]
        fitted = [abs(error_of(kept[row["row"]])) for row in own]
        sizes = (statistics.median(held), statistics.median(fitted), max(held))
        inside = sum(map(_is_inside, own))
        lines.append([name, str(len(own)), *(f"{100 * size:.1f} %" for size in sizes), f"{inside}"])
    head = ["kind", "rows", "median error", "if fitted to all rows", "worst", "inside interval"]
    return _table(head, "---|---:|---:|---:|---:|---:", lines)


def _is_inside(row: Row) -> bool:
    """Whether a row is within the interval that the other families give."""
    published, predicted = float(row["published"]), float(row["predicted"])
    return abs(math.log(predicted / published)) <= float(row["spread"])


def speeds() -> str:
    """Returns each published speed with its prediction, interval and error."""
    held = {row["row"]: row for row in rows_of("cross_validation")}
    lines = []
    for row in rows_of("time"):
        factor, predicted = math.exp(spread_of(held[row["row"]])), float(row["predicted"])
        unit = ", cycles" if row["unit"] == "cycles" else ""
        lines.append(
            [
                row["row"],
                row["model"] + unit,
                f"{int(row['published']):,}",
                f"{int(predicted):,}",
                f"{predicted / factor:,.0f} to {predicted * factor:,.0f}",
                f"{100 * error_of(row):+.0f}",
                f"{100 * float(held[row['row']]['error']):+.0f}",
            ]
        )
    head = ["row", "model", "published", "predicted", "likely", "error, %", "cross-validated, %"]
    return _table(head, "---|---|---:|---:|---:|---:|---:", lines)


def constants() -> str:
    """Returns the record of each constant, and the row that it changes most."""
    moved = {row["number"]: row for row in rows_of("constants")}
    lines = []
    for name, record in CONSTANTS.items():
        value = f"{getattr(NUMBERS, name):g} {record.unit}"
        source = f"fitted to {', '.join(record.fitted_to)}" if record.fitted_to else ""
        row = moved.get(name)
        most = f"{row['most changed']}: {row['without']} → {row['with']}" if row else ""
        lines.append([f"`{name}`", value, record.meaning, source or record.evidence.value, most])
    head = ["constant", "value", "meaning", "source", "row most changed, without → with it, %"]
    return _table(head, "---|---:|---|---|---", lines)


def spreads() -> str:
    """Returns the factor of the interval of a figure that has one subject alone."""
    lines = [[each.value, f"{math.exp(SPREADS[each]):.2f}"] for each in Subject]
    return _table(["subject", "factor"], "---|---:", lines)


def settings() -> str:
    """Returns errors with the settings that were chosen, and with others."""
    kept, lines = {row["row"]: row for row in rows_of("time")}, []
    for setting in rows_of("settings"):
        row = kept[setting["row"]]
        taken, otherwise = row, row | {"predicted": setting["predicted"]}
        errors = [f"{100 * error_of(each):+.0f}" for each in (taken, otherwise)]
        cells = [setting["taken"], setting["choice"], errors[0], setting["otherwise"], errors[1]]
        lines.append([row["row"], *cells])
    head = ["row", "taken", "chosen by", "error, %", "otherwise", "error, %"]
    return _table(head, "---|---|---|---:|---|---:", lines)


def _table(head: Sequence[str], rule: str, lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(head)} |", f"|{rule}|"]
    return "\n".join([*rows, *(f"| {' | '.join(line)} |" for line in lines)])


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    "spreads": spreads,
    "speeds": speeds,
    "other settings": settings,
    "memory": memory,
    "constants": constants,
}


def picture() -> str:
    """Returns the picture of all rows as SVG."""
    bars = []
    for row in rows_of("cross_validation"):
        ratio = float(row["predicted"]) / float(row["published"])
        bars.append(fidelity_picture.Bar(row["row"], row["kind"], ratio, spread_of(row)))
    return fidelity_picture.svg(bars)


def current(document: str) -> str:
    """Returns `document` with all tables generated from the current files."""
    return marked_tables.with_tables(document, TABLES)


if __name__ == "__main__":
    marked_tables.run(DOCUMENT, "Writes the tables of docs/fidelity.md.", current)
    if sys.argv[1:] and PICTURE.read_text(encoding="utf-8") != picture():
        sys.exit(f"{PICTURE.name} is stale: run `make docs`.")
    PICTURE.write_text(picture(), encoding="utf-8")
