"""What the model of the machine predicts, beside published figures: speeds, and memory of tiles.

Nothing is run or lowered: each model is traced on the meta device. Sources and configurations are
in `docs/fidelity.md`, whose tables `make docs` makes from the files that `--csv` writes. With names
of rows only those are replaced. With `--details` each row is followed by its table; `--constants`
tells what each fitted constant and each assumption does.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from fidelity_constants import constant_figures
from fidelity_memory import planned
from fidelity_rows import ROWS
from fidelity_time import capture
from time_rows import TIME_ROWS

from poptorch_emu.report.time_report import TimeReport

RESULTS = Path(__file__).parent / "results"


def write(path: Path, rows: Sequence[Mapping[str, object]], key: str = "row") -> None:
    """Writes rows into a CSV file, in place of those that have the same `key`."""
    kept: dict[str, Mapping[str, object]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = {row[key]: row for row in csv.DictReader(file)}
    kept.update((str(row[key]), row) for row in rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept.values())


def main() -> None:
    """Prints what is asked for as CSV, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", action="store_true", help="write benchmarks/results/fidelity_*")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--time", action="store_true", help="predict speeds alone")
    parser.add_argument("--memory", action="store_true", help="predict memory alone")
    parser.add_argument("--constants", action="store_true", help="leave constants out, in turn")
    parser.add_argument("rows", nargs="*", help="beginnings of names; by default all")
    arguments = parser.parse_args()
    names = tuple(arguments.rows) or ("",)
    is_all = not (arguments.time or arguments.memory)
    found: dict[str, list[dict[str, object]]] = {}
    if is_all or arguments.memory:
        for row in (row for row in ROWS if row.name.startswith(names)):
            of_memory = planned(row)
            _show(found, "fidelity_memory", of_memory.figures())
            if arguments.details:
                print(f"\n{of_memory.tiles}\n", flush=True)
    cases = []
    if is_all or arguments.time:
        for timed in (row for row in TIME_ROWS if row.name.startswith(names)):
            case = capture(timed)
            cases.append(case)
            _show(found, "fidelity_time", case.figures())
            if arguments.details:
                print(f"\n{TimeReport.of(case.plan())}\n", flush=True)
    if arguments.constants:
        for figures in constant_figures(cases):
            _show(found, "fidelity_constants", figures)
    if arguments.csv:
        for name, rows in found.items():
            write(RESULTS / f"{name}.csv", rows)


def _show(found: dict[str, list[dict[str, object]]], name: str, row: dict[str, object]) -> None:
    rows = found.setdefault(name, [])
    if not rows:
        print(f"\n{name}\n{','.join(row)}")
    rows.append(row)
    print(",".join(map(str, row.values())), flush=True)


if __name__ == "__main__":
    main()
