"""Checks random models until the time is over: `make fuzz SECONDS=600`.

A failure is printed with the command that repeats it. Each worker is a separate process, so that a
crash is reported like any other fault, together with its seed.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import subprocess
import sys
import time
import traceback
from collections import Counter

import torch
from fuzz.checks import CHECKS, check


def main() -> int:
    """Runs the command line; returns 1 if anything failed."""
    arguments = _parse()
    if arguments.only:
        kind, seed = arguments.only.split(":")
        print(CHECKS[kind](int(seed)))
        return 0
    if arguments.worker is not None:
        _work(arguments)
        return 0
    workers = [_start(arguments, index) for index in range(arguments.jobs)]
    return int(any([_followed(worker) for worker in workers]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first one")
    parser.add_argument("--kinds", nargs="*", default=list(CHECKS), choices=list(CHECKS))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", help="one case, as kind:seed")
    parser.add_argument("--worker", type=int, help="the number of this process")
    return parser.parse_args()


def _start(arguments: argparse.Namespace, index: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "fuzz", "--worker", str(index)]
    command += ["--seconds", str(arguments.seconds), "--jobs", str(arguments.jobs)]
    command += ["--seed", str(arguments.seed), "--kinds", *arguments.kinds]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _followed(worker: subprocess.Popen[str]) -> bool:
    """Prints the output of a worker; returns whether anything failed."""
    assert worker.stdout is not None
    case, has_failed = "", False
    for line in worker.stdout:
        if line.startswith("start "):
            case = line.split()[1]
            continue
        has_failed |= line.startswith("FAILED")
        print(line, end="", flush=True)
    if worker.wait():
        print(f"FAILED {case}: the process ended with {worker.returncode}")
    return has_failed or worker.returncode != 0


def _work(arguments: argparse.Namespace) -> None:
    os.environ.setdefault("POPTORCH_EMU_SYSTEM", "mk2-pod64")
    torch.set_num_threads(1)
    for name in ("poptorch::python", "poptorch:cpp"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    end, counts, index = time.monotonic() + arguments.seconds, Counter[str](), arguments.worker
    while time.monotonic() < end:
        kind = arguments.kinds[index // arguments.jobs % len(arguments.kinds)]
        seed = arguments.seed + index
        print(f"start {kind}:{seed}", flush=True)
        counts[f"{kind} {_outcome(kind, seed)}"] += 1
        index += arguments.jobs
    print(", ".join(f"{number} {what}" for what, number in sorted(counts.items())), flush=True)


def _outcome(kind: str, seed: int) -> str:
    try:
        return check(kind, seed)
    except Exception:
        print(f"FAILED; to repeat: python -m fuzz --only {kind}:{seed}")
        print(traceback.format_exc(limit=-4), flush=True)
        return "failed"
    finally:
        gc.collect()  # Frees the IPUs of wrappers that the failure left behind.


if __name__ == "__main__":
    sys.exit(main())
