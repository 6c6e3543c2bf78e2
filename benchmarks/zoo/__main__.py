"""Sweeps the models of current libraries: which run unchanged, and why the others do not.

    python benchmarks/zoo --csv zoo.csv [--library NAME]... [--pattern REGEX] [--every N]
        [--first M]

Each model gets a tiny configuration with random weights. Inference and two steps of training are
compared with eager PyTorch. A model that is refused runs again with `emulator.set_value_guards`. A
model that eager PyTorch does not run with the arguments found is not counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from one_process import LIBRARIES, library_of

_CHILD = Path(__file__).with_name("one_process.py")
_WAYS = ("inference", "training", "inference_guarded", "training_guarded")
COLUMNS = [
    *("date", "library", "version", "model"),
    *_WAYS,
    *(f"{way}_detail" for way in _WAYS),
    "seconds",
]


def results(library: str, names: list[str], seconds: int) -> Iterator[dict[str, str]]:
    """Yields a row for each model, also for one that ends its process or takes too long."""
    while names:
        command = [sys.executable, "-W", "ignore", str(_CHILD), str(seconds), library, *names]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                yield json.loads(line)
                names = names[1:]
        if names:
            kind = f"failed: the process ended with {child.returncode}, or took over {seconds} s"
            yield {"library": library, "model": names[0], "inference": kind}
            names = names[1:]


def summary(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields lines of text: how many models run in each way, and the causes of the others."""
    for library in dict.fromkeys(row["library"] for row in rows):
        own = [row for row in rows if row["library"] == library]
        for way in ("inference", "training"):
            kinds = [row[way] for row in own if row.get(way)]
            measured = [kind for kind in kinds if not kind.startswith("not compared")]
            equal = measured.count("equal")
            rescued = sum(
                row.get(f"{way}_guarded") == "equal" and row.get(way) != "equal" for row in own
            )
            if measured:
                share = 100 / len(measured)
                yield (
                    f"{library}, {way}: {equal} of {len(measured)} as they are "
                    f"({equal * share:.0f} %), with guards {equal + rescued} "
                    f"({(equal + rescued) * share:.0f} %)"
                )
            for kind, count in Counter(kinds).most_common():
                yield f"    {count:4d} {kind}"


def main() -> None:
    """Runs the sweep, writes the CSV and prints a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--csv", type=Path, required=True, help="file to which the rows are written"
    )
    parser.add_argument(
        "--library",
        action="append",
        choices=LIBRARIES,
        help="library to measure; may be repeated (default: all)",
    )
    parser.add_argument(
        "--pattern",
        default="",
        help="regular expression; only models whose names match are measured",
    )
    parser.add_argument("--every", type=int, default=1, help="measure only every Nth model")
    parser.add_argument("--first", type=int, default=0, help="number of the first model, from 0")
    parser.add_argument(
        "--seconds", type=int, default=180, help="time limit for one model, in seconds"
    )
    args = parser.parse_args()
    rows: list[dict[str, str]] = []
    with args.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for library in args.library or LIBRARIES:
            try:
                names = library_of(library).names()
            except ImportError as error:
                print(f"{library} is left out: {error}", flush=True)
                continue
            chosen = [name for name in names if re.search(args.pattern, name)]
            chosen = chosen[args.first :: args.every]
            for row in results(library, chosen, args.seconds):
                rows.append(row)
                writer.writerow(row)
                file.flush()
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
