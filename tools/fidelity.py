"""Writes the tables of docs/fidelity.md from the runs in benchmarks/results.

`benchmarks/fidelity.py --csv --constants` writes the files of these runs.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence

import marked_tables

DOCUMENT = marked_tables.ROOT / "docs" / "fidelity.md"
RESULTS = marked_tables.ROOT / "benchmarks" / "results"
_KIB = 1024
# Maximum relative error of a prediction that counts as near.
_NEAR = 0.2

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
    columns = (("total_bytes", 1e6), ("fullest_tile_bytes", _KIB), ("always_live_bytes", 1e6))
    lines = []
    for row in rows_of("memory"):
        cells = [_beside(row[name], row[f"published_{name}"], unit) for name, unit in columns]
        lines.append([row["row"], row["model"], row["published"], row["predicted"], *cells])
    head = ["row", "model", "published", "predicted"]
    head += ["total MB", "fullest tile KiB", "always live MB"]
    return _table(head, "---|---|---|---|---:|---:|---:", lines)


def _beside(found: str, published: str, unit: float) -> str:
    text = f"{float(found) / unit:,.1f}"
    return f"{text} ({float(found) / float(published):.2f})" if published else text


def kinds() -> str:
    """Returns the accuracy of the predictions of each kind, and the worst of them."""
    rows = rows_of("time")
    lines = [
        _summary(kind, [row for row in rows if row["kind"] == kind])
        for kind in dict.fromkeys(row["kind"] for row in rows)
    ]
    lines.append(_summary("all", rows))
    head = ["kind", "rows", "median error", "within 20 %", "within 40 %", "worst", "mean"]
    head.append("median with settings as before")
    far = [
        f"{row['row']} ({100 * error_of(row):+.0f} %)"
        for row in rows
        if abs(error_of(row)) > 2 * _NEAR
    ]
    table = _table(head, "---|---:|---:|---:|---:|---:|---:|---:", lines)
    return f"{table}\n\nOff by more than 40 %: {', '.join(far) or 'none'}."


def _error_before(row: Row) -> float:
    """Returns a row's error with its setting before the model changed, if there was one."""
    for setting in rows_of("settings"):
        if setting["row"] == row["row"] and setting["error before"]:
            return error_of(row | {"predicted": setting["predicted"]})
    return error_of(row)


def _summary(name: str, rows: Sequence[Row]) -> list[str]:
    errors = [error_of(row) for row in rows]
    sizes = [abs(error) for error in errors]
    shares = [sum(size <= limit for size in sizes) / len(sizes) for limit in (_NEAR, 2 * _NEAR)]
    mean = f"{100 * statistics.mean(errors):+.0f} %"
    parts = [f"{share:.0%}" for share in shares]
    worst = f"{100 * max(sizes):.0f} %"
    before = f"{100 * statistics.median(abs(_error_before(row)) for row in rows):.1f} %"
    median = f"{100 * statistics.median(sizes):.1f} %"
    return [name, str(len(rows)), median, *parts, worst, mean, before]


def goals() -> str:
    """Returns the rows with well-known settings, and a summary line."""
    rows = [row for row in rows_of("time") if row["is_goal"] == "1"]
    sizes = [abs(error_of(row)) for row in rows]
    near = sum(size <= _NEAR for size in sizes) / len(sizes)
    line = (
        f"{len(rows)} rows: median error {100 * statistics.median(sizes):.1f} %, {near:.0%} within "
        f"20 %, worst {100 * max(sizes):.0f} %."
    )
    return f"{_speeds(rows)}\n\n{line}"


def others() -> str:
    """Returns the table of the speeds that are no goals."""
    return _speeds([row for row in rows_of("time") if row["is_goal"] != "1"])


def _speeds(rows: Sequence[Row]) -> str:
    lines = [
        [
            row["row"],
            row["model"] + (", cycles" if row["unit"] == "cycles" else ""),
            f"{int(row['published']):,}",
            f"{int(row['predicted']):,}",
            f"{100 * error_of(row):+.0f}%",
        ]
        for row in rows
    ]
    return _table(
        ["row", "model", "published", "predicted", "error"], "---|---|---:|---:|---:", lines
    )


def constants() -> str:
    """Returns the median error of each kind in percent, with each constant switched off in turn.

    The last column has the row that changes most.
    """
    rows = rows_of("constants")
    names = list(rows[0])[2:-3]
    lines = [[_constant(row), *(row[name] for name in names), _changed(row)] for row in rows]
    head = ["number", *names, "row most changed, without → with it"]
    return _table(head, "---|" + "---:|" * len(names) + "---", lines)


def _constant(row: Row) -> str:
    return f"`{row['number']}` {row['value']}" if row["value"] else row["number"]


def _changed(row: Row) -> str:
    name = row["most changed"]
    return f"{name}: {row['without']} → {row['with']}" if name else ""


def families() -> str:
    """Returns the errors of each family, with a constant that was fitted without it."""
    head = ["family left out", "rows", "fit", "median error of its rows, %", "worst, %"]
    lines = [list(row.values()) for row in rows_of("families")]
    return _table(head, "---|---:|---:|---:|---:", lines)


def settings() -> str:
    """Returns errors with the settings that were chosen, and with others."""
    speeds, lines = {row["row"]: row for row in rows_of("time")}, []
    for setting in rows_of("settings"):
        row = speeds[setting["row"]]
        taken, otherwise = row, row | {"predicted": setting["predicted"]}
        errors = [f"{100 * error_of(each):+.0f}" for each in (taken, otherwise)]
        cells = [setting["taken"], errors[0], setting["otherwise"], errors[1]]
        lines.append([row["row"], *cells, setting["error before"]])
    head = ["row", "taken", "error, %", "otherwise", "error, %", "before, %"]
    return _table(head, "---|---|---:|---|---:|---:", lines)


def _table(head: Sequence[str], rule: str, lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(head)} |", f"|{rule}|"]
    return "\n".join([*rows, *(f"| {' | '.join(line)} |" for line in lines)])


TABLES: dict[str, Callable[[], str]] = {
    "memory": memory,
    "kinds": kinds,
    "speeds": goals,
    "other speeds": others,
    "numbers left out": constants,
    "families left out": families,
    "other settings": settings,
}


def current(document: str) -> str:
    """Returns `document` with all tables generated from the current files."""
    return marked_tables.with_tables(document, TABLES)


if __name__ == "__main__":
    marked_tables.run(DOCUMENT, "Writes the tables of docs/fidelity.md.", current)
