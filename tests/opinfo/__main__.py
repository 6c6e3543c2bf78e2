"""Checks PyTorch's databases and prints the outcomes of all cases: `make test-ops`."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

from opinfo.cases import KINDS, cases, names
from opinfo.check import Outcome, check
from opinfo.document import page

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def main() -> int:
    """Runs the command line; returns 1 if anything failed."""
    arguments = _parse()
    if arguments.shard is not None:
        _run_shard(arguments)
        return 0
    outcomes = _saved(arguments.saved) if arguments.saved else _run_shards(arguments)
    _print_summary(outcomes)
    if arguments.document:
        PAGE.write_text(page(outcomes), encoding="utf-8")
    return int(any(outcome.status == "failed" for outcome in outcomes))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m opinfo", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="index and count")
    parser.add_argument("--names", nargs="*", help="only these entries")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--limit", type=int, help="samples of one kind and type of an entry")
    parser.add_argument("--shard", type=int, help="only this process, as lines of JSON")
    parser.add_argument("--saved", type=Path, nargs="*", help="lines of JSON; nothing is run")
    parser.add_argument("--document", action="store_true", help=f"writes {PAGE.name}")
    return parser.parse_args()


def _run_shard(arguments: argparse.Namespace) -> None:
    """Checks every `jobs`-th entry and writes each outcome as a line of JSON."""
    logging.getLogger("poptorch::python").setLevel(logging.ERROR)
    chosen = arguments.names or names(tuple(arguments.part))
    for name in chosen[arguments.shard :: arguments.jobs]:
        print(json.dumps({"start": name}), flush=True)
        for case in cases(name, arguments.kinds, arguments.limit):
            print(json.dumps(asdict(check(case))), flush=True)


def _run_shards(arguments: argparse.Namespace) -> list[Outcome]:
    command = [sys.executable, "-W", "ignore", "-m", "opinfo", *sys.argv[1:]]
    shards = [
        subprocess.Popen([*command, "--shard", str(index)], stdout=subprocess.PIPE, text=True)
        for index in range(arguments.jobs)
    ]
    outcomes = []
    for shard in shards:
        output, _ = shard.communicate()
        found, last = _parsed(output)
        outcomes += found
        if shard.returncode != 0:
            outcomes.append(Outcome(last, "failed", f"{last} forward", f"exit {shard.returncode}"))
    return outcomes


def _saved(files: list[Path]) -> list[Outcome]:
    return [outcome for file in files for outcome in _parsed(file.read_text(encoding="utf-8"))[0]]


def _parsed(output: str) -> tuple[list[Outcome], str]:
    """Returns the outcomes that a process wrote, and the entry that it began last."""
    outcomes, last = [], ""
    for line in output.splitlines():
        fields = json.loads(line)
        if "start" in fields:
            last = fields["start"]
        else:
            outcomes.append(Outcome(**fields))
    return outcomes, last


def _print_summary(outcomes: list[Outcome]) -> None:
    by_name: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_name[outcome.name].append(outcome)
    for name in sorted(by_name):
        counts = Counter(outcome.status for outcome in by_name[name])
        if counts["failed"] or counts["refused"]:
            print(f"{name}: {dict(counts)}")
        shown = set()
        for outcome in by_name[name]:
            key = outcome.detail[:120]
            if outcome.status == "failed" and key not in shown:
                shown.add(key)
                print(f"    {outcome.case}\n        {outcome.detail[:400]}")
    total = Counter(outcome.status for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    slow = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    print("slowest:", ", ".join(f"{o.case[:60]} {o.seconds:.1f} s" for o in slow))
    print(f"{len(by_name)} entries, {len(outcomes)} samples in {seconds:.0f} s: {dict(total)}")


if __name__ == "__main__":
    sys.exit(main())
