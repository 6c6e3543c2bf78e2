"""Compares predictions of the machine model with published figures: speeds and tile memory.

No model is run or lowered; each is traced on the meta device. `docs/fidelity.md` lists sources and
configurations, and `make docs` generates its tables from the files of `--csv`. With row names, only
those rows are replaced. With `--details` each row is followed by its table. `--constants` computes
the effect of each constant and each assumption on all rows, and the errors in cross-validation.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fidelity_constants import constant_figures, setting_figures
from fidelity_cross_validation import held_out
from fidelity_memory import MemoryCase, planned
from fidelity_rows import ROWS
from fidelity_spreads import cross_validation_figures, spread_figures
from fidelity_time import Captured, capture
from time_rows import TIME_ROWS

from poptorch_emu.report.time_report import TimeReport

RESULTS = Path(__file__).parent / "results"

Figures = Mapping[str, object]


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the parsed arguments of a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", action="store_true", help="write benchmarks/results/fidelity_*")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--time", action="store_true", help="predict speeds only")
    parser.add_argument("--memory", action="store_true", help="predict memory only")
    parser.add_argument(
        "--constants", action="store_true", help="predict again without each constant in turn"
    )
    parser.add_argument(
        "rows", nargs="*", help="beginnings of the names of rows (default: all rows)"
    )
    arguments = parser.parse_args(words)
    if arguments.constants and (arguments.rows or arguments.memory or arguments.time):
        parser.error("--constants needs all rows: leave out --memory, --time and names")
    known = [row.name for row in (*ROWS, *TIME_ROWS)]
    for name in arguments.rows:
        if not any(row.startswith(name) for row in known):
            parser.error(f"no row's name begins with '{name}'; there are {', '.join(known)}")
    return arguments


def main() -> None:
    """Prints the requested figures as CSV, or writes them to files."""
    arguments = parsed()
    names = tuple(arguments.rows) or ("",)
    is_all = not (arguments.time or arguments.memory)
    found: dict[str, list[Figures]] = {}
    cases: list[Captured] = []
    memory: list[MemoryCase] = []
    if is_all or arguments.memory:
        found["memory"] = shown("memory", _memory(names, arguments.details, memory))
    if is_all or arguments.time:
        found["time"] = shown("time", _speeds(names, arguments.details, cases))
    if arguments.constants:
        found["constants"] = shown("constants", constant_figures(cases))
        found["settings"] = shown("settings", setting_figures(cases))
        rows = held_out(cases)
        found["cross_validation"] = shown("cross_validation", cross_validation_figures(rows))
        found["spreads"] = shown("spreads", spread_figures(rows, memory))
    if arguments.csv:
        for name, rows in ((name, rows) for name, rows in found.items() if rows):
            write(RESULTS / f"fidelity_{name}.csv", rows, keeps_others=bool(arguments.rows))


def _memory(
    names: tuple[str, ...], has_details: bool, cases: list[MemoryCase]
) -> Iterator[Figures]:
    """Yields the figures of each published memory, and adds its plan to `cases`."""
    for row in (row for row in ROWS if row.name.startswith(names)):
        case = planned(row)
        cases.append(case)
        yield case.figures()
        if has_details:
            print(f"\n{case.tiles}\n", flush=True)


def _speeds(names: tuple[str, ...], has_details: bool, cases: list[Captured]) -> Iterator[Figures]:
    """Yields the figures of each published speed, and adds its captured model to `cases`."""
    for row in (row for row in TIME_ROWS if row.name.startswith(names)):
        case = capture(row)
        cases.append(case)
        yield case.figures()
        if has_details:
            print(f"\n{TimeReport.of(case.plan())}\n", flush=True)


def shown(name: str, rows: Iterable[Figures]) -> list[Figures]:
    """Returns all rows and prints each one as CSV when it arrives."""
    found: list[Figures] = []
    print(f"\nfidelity_{name}")
    for row in rows:
        writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
        if not found:
            writer.writeheader()
        writer.writerow(row)
        sys.stdout.flush()
        found.append(row)
    return found


def write(path: Path, rows: Sequence[Figures], *, keeps_others: bool = False) -> None:
    """Writes rows to a CSV file; `keeps_others` keeps the file's rows with other names."""
    by_name: dict[str, Figures] = {}
    if keeps_others and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            by_name = {row["row"]: row for row in csv.DictReader(file)}
        by_name.update((str(row["row"]), row) for row in rows)
        rows = list(by_name.values())
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
