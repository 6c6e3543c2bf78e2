"""What `enableProfiling` costs: time of a call with it over that without, in turns."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from models import CASES

import poptorch_emu as poptorch


def seconds_of_a_call(name: str, is_profiling: bool, num_calls: int) -> float:
    """Returns the median of some calls."""
    torch.manual_seed(0)
    case = CASES[name]
    options = poptorch.Options().deviceIterations(case.iterations)
    options.showCompilationProgressBar(False)
    model, batch = case.make(), case.batch(case.samples)
    with tempfile.TemporaryDirectory() as folder:
        if is_profiling:
            options.enableProfiling(folder)
        if case.make_optimizer is None:
            wrapped = poptorch.inferenceModel(model.eval(), options)
        else:
            options.Training.gradientAccumulation(case.accumulation)
            optimizer = case.make_optimizer(model.parameters())
            wrapped = poptorch.trainingModel(model, options, optimizer)
        walls = []
        for _ in range(3 + num_calls):
            start = time.perf_counter()
            wrapped(*batch)
            walls.append(time.perf_counter() - start)
        wrapped.destroy()
    return statistics.median(walls[3:])


def measured(name: str, is_profiling: bool, num_calls: int) -> float:
    """Returns the same of a process of its own."""
    command = [sys.executable, __file__, "--child", name, "--calls", str(num_calls)]
    command += ["--profiling"] if is_profiling else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=150)
    parser.add_argument("--child", help="internal")
    parser.add_argument("--profiling", action="store_true", help="internal")
    args = parser.parse_args()
    if args.child:
        print(seconds_of_a_call(args.child, args.profiling, args.calls))
        return
    print("| model | with profiling over without |\n|---|---:|")
    for name in args.models:
        ratios = [
            measured(name, True, args.calls) / measured(name, False, args.calls)
            for _ in range(args.rounds)
        ]
        every = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"| {name} | {statistics.median(ratios):.3f} ({every}) |", flush=True)


if __name__ == "__main__":
    main()
