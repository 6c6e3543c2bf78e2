"""Measures the speed-up by a second worker, the limit of two cores, and a busy neighbour.

Three variants take turns in one process: one worker with one thread, two workers, and two
independent executors of one worker each, on one Python thread each. The third variant shows the
speed-up of two cores for uncoupled executors, because the cores of a virtual machine may differ. A
turn is even if the third variant has 1.9 to 2.1 times the speed of one worker, so that both cores
were equal and almost idle otherwise. One worker is measured twice in each turn, because otherwise
one error could both make a turn even and enlarge its gain. A model on one virtual IPU has threads
instead of workers. The lines show medians over the ratios of each turn, and the number of even
turns. Then two workers are measured with and without a process that computes all the time. Run it
on quiet cores. `--csv results/workers.csv` records the run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import result_files
import torch
from models import CASES
from speed import emulated_step

# The neighbour ends with this process, also if this process is killed.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

# Speed-up of two independent executors if the cores are equal and idle otherwise.
_EVEN = (1.9, 2.1)

Step = Callable[[], object]


def warm_step(name: str, num_workers: int) -> Step:
    """Returns a function that calls a model, after several warm-up calls."""
    os.environ["POPTORCH_EMU_WORKERS"] = str(num_workers)
    torch.set_num_threads(num_workers)
    torch.manual_seed(0)
    step = emulated_step(CASES[name])
    for _ in range(3):
        step()
    return step


def calls_per_second(steps: list[Step], seconds: float) -> float:
    """Returns the calls per second of all steps together, each on its own thread."""
    counts = [0] * len(steps)
    start = time.perf_counter()

    def call(index: int) -> None:
        while time.perf_counter() < start + seconds:
            steps[index]()
            counts[index] += 1

    threads = [threading.Thread(target=call, args=(index,)) for index in range(1, len(steps))]
    for thread in threads:
        thread.start()
    call(0)
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def measure(name: str, turns: int, seconds: float) -> dict[str, float]:
    """Returns the figures of a line of the table.

    These are the speed of two workers over one, in all turns and in even turns (nan without any),
    the number of even turns, the speed of two executors over one, and of two workers with a
    neighbour over without.
    """
    two, *apart = warm_step(name, 2), warm_step(name, 1), warm_step(name, 1)
    gains, bounds, shares = [], [], []
    for _ in range(turns):
        one = calls_per_second(apart[:1], seconds)
        gains.append(calls_per_second([two], seconds) / one)
        one = calls_per_second(apart[:1], seconds)
        bounds.append(calls_per_second(apart, seconds) / one)
    for _ in range(turns):
        undisturbed = calls_per_second([two], seconds)
        neighbour = subprocess.Popen([sys.executable, "-c", _BUSY])
        try:
            shares.append(calls_per_second([two], seconds) / undisturbed)
        finally:
            neighbour.kill()
            neighbour.wait()
    least, most = _EVEN
    even = [gain for gain, bound in zip(gains, bounds, strict=True) if least <= bound <= most]
    return {
        "two_workers_over_one": statistics.median(gains),
        "in_even_turns": statistics.median(even) if even else math.nan,
        "even_turns": len(even),
        "two_executors_over_one": statistics.median(bounds),
        "beside_neighbour": statistics.median(shares),
    }


def main() -> None:
    """Prints a table in Markdown, each line from its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each measurement")
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    parser.add_argument("--child", action="store_true", help="measure in this process")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.models[0], args.turns, args.seconds)))
        return
    rows = []
    for name in args.models:
        command = [sys.executable, __file__, "--child", "--models", name]
        command += ["--turns", str(args.turns), "--seconds", str(args.seconds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        line = json.loads(done.stdout.splitlines()[-1])
        if not rows:
            words = [column.replace("_", " ") for column in line]
            print("| model |", " | ".join(words), "|\n|---|" + "---:|" * len(line))
        rows.append({"turns": args.turns, "seconds": args.seconds, "workload": name, **line})
        cells = [
            f"{value:.2f}" if isinstance(value, float) else str(value) for value in line.values()
        ]
        print("|", " | ".join([name, *cells]), "|", flush=True)
    if args.csv:
        result_files.append(args.csv, rows)


if __name__ == "__main__":
    main()
