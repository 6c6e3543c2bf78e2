"""Checks the databases and prints what passed, was refused or failed: `make test-ops`."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict

from opinfo.cases import KINDS, cases, names
from opinfo.check import Outcome, check


def main() -> int:
    """Runs the command line; returns 1 if anything failed."""
    arguments = _parse()
    if arguments.shard is not None:
        _run_shard(arguments)
        return 0
    outcomes = _run_shards(arguments)
    _print_summary(outcomes)
    return int(any(outcome.status == "failed" for outcome in outcomes))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m opinfo", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="index and count")
    parser.add_argument("--names", nargs="*", help="only these entries")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--limit", type=int, help="samples of one kind and type of an entry")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_shard(arguments: argparse.Namespace) -> None:
    """Checks every `jobs`-th entry and writes one line of JSON an outcome."""
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
        current = ""
        output, _ = shard.communicate()
        for line in output.splitlines():
            fields = json.loads(line)
            if "start" in fields:
                current = fields["start"]
            else:
                outcomes.append(Outcome(**fields))
        if shard.returncode != 0:
            outcomes.append(Outcome(current, "failed", current, f"exit {shard.returncode}"))
    return outcomes


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
