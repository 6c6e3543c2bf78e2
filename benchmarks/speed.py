"""Training throughput against eager PyTorch and `torch.compile`, in alternating processes.

Every candidate does the same updates on the same micro-batches. A process warms up and reports the
median of several calls; rounds of processes take turns, and the table shows medians over rounds and
the ratio to eager PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from models import CASES, Case

import poptorch_emu as poptorch

CANDIDATES = ("poptorch_emu", "eager", "torch.compile")
LEARNING_RATE = 1e-3


def emulated_step(case: Case) -> Callable[[], object]:
    """Returns one call on virtual IPUs."""
    options = poptorch.Options()
    options.deviceIterations(case.iterations)
    options.Training.gradientAccumulation(case.accumulation)
    options.showCompilationProgressBar(False)
    model = case.make()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    training = poptorch.trainingModel(model, options, optimizer)
    batch = case.batch(case.rows * case.accumulation * case.iterations)
    return lambda: training(*batch)


def plain_step(case: Case, is_compiled: bool) -> Callable[[], object]:
    """Returns the plain PyTorch loop of the same updates."""
    model = case.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    forward = torch.compile(model) if is_compiled else model
    batch = case.batch(case.rows * case.accumulation * case.iterations)
    micro_batches = list(zip(*(tensor.split(case.rows) for tensor in batch), strict=True))

    def step() -> None:
        for index, micro_batch in enumerate(micro_batches, start=1):
            _, loss = forward(*micro_batch)
            (loss / case.accumulation).backward()
            if index % case.accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()

    return step


def measure(name: str, candidate: str, seconds: float) -> float:
    """Returns samples per second of one candidate, the median over the calls of `seconds`."""
    case = CASES[name]
    torch.manual_seed(0)
    if candidate == "poptorch_emu":
        step = emulated_step(case)
    else:
        step = plain_step(case, candidate == "torch.compile")
    for _ in range(3):
        step()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return case.rows * case.accumulation * case.iterations / statistics.median(times)


def run_process(name: str, candidate: str, seconds: float) -> float | None:
    """Measures in a process of its own; `None` when the candidate fails."""
    command = [sys.executable, __file__, "--measure", name, candidate, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{name}, {candidate}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def compare(name: str, rounds: int, seconds: float) -> str:
    """Returns one line of the table."""
    results: dict[str, list[float]] = {candidate: [] for candidate in CANDIDATES}
    for _ in range(rounds):
        for candidate in CANDIDATES:
            value = run_process(name, candidate, seconds)
            if value is not None:
                results[candidate].append(value)
    medians = {key: statistics.median(values) for key, values in results.items() if values}
    cells = [f"{medians[key]:,.0f}" if key in medians else "failed" for key in CANDIDATES]
    ratios = [
        f"{medians['poptorch_emu'] / medians[other]:.2f}"
        if other in medians and "poptorch_emu" in medians
        else "-"
        for other in CANDIDATES[1:]
    ]
    return f"| {name} | {' | '.join(cells)} | {' | '.join(ratios)} |"


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each process")
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "CANDIDATE"), help="internal")
    args = parser.parse_args()
    if args.measure:
        print(measure(*args.measure, args.seconds))
        return
    print("| model | poptorch_emu | eager | torch.compile | vs eager | vs torch.compile |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in args.models:
        print(compare(name, args.rounds, args.seconds), flush=True)


if __name__ == "__main__":
    main()
