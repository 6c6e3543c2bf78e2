"""Throughput and CPU time against eager PyTorch and `torch.compile`, in alternating processes.

Every candidate does the same updates on the same micro-batches. A process warms up and reports the
medians of several calls; rounds of processes take turns, and the table shows medians of the ratios
of each round. Run it on a quiet machine: eager PyTorch on several threads collapses beside any
other work, which makes the ratios too good. The CPU time of a sample hardly depends on other work;
it is compared with eager PyTorch on one thread. `--csv results/speed.csv` records the run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import result_files
import torch
from models import CASES, Case

import poptorch_emu as poptorch

# Each candidate with the word for it in the columns of the CSV file.
WORDS = {
    "poptorch_emu": "poptorch_emu",
    "eager": "eager",
    "eager, 1 thread": "eager_1_thread",
    "torch.compile": "compile",
}
CANDIDATES = tuple(WORDS)
Measured = tuple[float, float]  # Samples a second, CPU milliseconds a sample.


def emulated_step(case: Case) -> Callable[[], object]:
    """Returns one call on virtual IPUs."""
    options = poptorch.Options()
    options.deviceIterations(case.iterations)
    options.showCompilationProgressBar(False)
    model, batch = case.make(), case.batch(case.samples)
    if case.make_optimizer is None:
        inference = poptorch.inferenceModel(model.eval(), options)
        return lambda: inference(*batch)
    options.Training.gradientAccumulation(case.accumulation)
    optimizer = case.make_optimizer(model.parameters())
    training = poptorch.trainingModel(model, options, optimizer)
    return lambda: training(*batch)


def plain_step(case: Case, is_compiled: bool) -> Callable[[], object]:
    """Returns the plain PyTorch loop of the same work."""
    model, batch = case.make(), case.batch(case.samples)
    micro_batches = list(zip(*(tensor.split(case.rows) for tensor in batch), strict=True))
    make_optimizer = case.make_optimizer
    forward = torch.compile(model) if is_compiled else model
    if make_optimizer is None:
        model.eval()

        def infer() -> None:
            with torch.no_grad():
                for micro_batch in micro_batches:
                    forward(*micro_batch)

        return infer
    optimizer = make_optimizer(model.parameters())

    def step() -> None:
        for index, micro_batch in enumerate(micro_batches, start=1):
            _, loss = forward(*micro_batch)
            (loss / case.accumulation).backward()
            if index % case.accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()

    return step


def measure(name: str, candidate: str, seconds: float, in_half: bool) -> Measured:
    """Returns the medians over the calls of `seconds`."""
    case = CASES[name].in_half() if in_half else CASES[name]
    torch.manual_seed(0)
    if candidate == "eager, 1 thread":
        torch.set_num_threads(1)
    if candidate == "poptorch_emu":
        step = emulated_step(case)
    else:
        step = plain_step(case, candidate == "torch.compile")
    for _ in range(3):
        step()
    walls, cpus = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(walls) < 5:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return case.samples / statistics.median(walls), 1e3 * statistics.mean(cpus) / case.samples


def run_process(name: str, candidate: str, options: list[str]) -> Measured | None:
    """Measures in a process of its own; `None` when the candidate fails."""
    command = [sys.executable, __file__, "--measure", name, candidate, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{name}, {candidate}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    speed, cpu = done.stdout.split()[-2:]
    return float(speed), float(cpu)


def compare(name: str, rounds: int, candidates: list[str], options: list[str]) -> dict[str, float]:
    """Measures in turns, prints one line of the table and returns its figures by column."""
    results: dict[str, list[Measured]] = {}
    for _ in range(rounds):
        for candidate in candidates:
            value = run_process(name, candidate, options)
            if value is not None:
                results.setdefault(candidate, []).append(value)
    mine = results[CANDIDATES[0]]
    figures = {}
    for candidate, theirs in results.items():
        word = WORDS[candidate]
        figures[f"{word}_samples_per_second"] = statistics.median(speed for speed, _ in theirs)
        figures[f"{word}_cpu_ms_per_sample"] = statistics.median(cpu for _, cpu in theirs)
        if theirs is not mine:
            ratios = [one / other for (one, _), (other, _) in zip(mine, theirs, strict=False)]
            figures[f"vs_{word}"] = statistics.median(ratios)
    print(f"| {name} | {' | '.join(_cells(figures))} |", flush=True)
    return figures


def _cells(figures: dict[str, float]) -> list[str]:
    forms = {f"{word}_samples_per_second": ",.0f" for word in WORDS.values()}
    forms |= {"vs_eager": ".2f", "vs_compile": ".2f"}
    forms |= {f"{word}_cpu_ms_per_sample": ".3f" for word in ("poptorch_emu", "eager_1_thread")}
    return [
        format(figures[column], form) if column in figures else "-"
        for column, form in forms.items()
    ]


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each process")
    parser.add_argument("--half", action="store_true", help="weights and inputs in float16")
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "CANDIDATE"), help="internal")
    args = parser.parse_args()
    if args.measure:
        print(*measure(*args.measure, args.seconds, args.half))
        return
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; samples a second,")
    print("ratios of throughput, and CPU milliseconds of a sample.\n")
    names = [*CANDIDATES, "vs eager", "vs compile", "CPU ms", "CPU ms eager, 1 thread"]
    print(f"| model | {' | '.join(names)} |")
    print(f"|---|{'---:|' * len(names)}")
    options = ["--seconds", str(args.seconds), *(["--half"] if args.half else [])]
    rows = {n: compare(n, args.rounds, args.candidates, options) for n in args.models}
    for other in args.candidates[1:]:
        ratios = [row[f"vs_{WORDS[other]}"] for row in rows.values() if f"vs_{WORDS[other]}" in row]
        if ratios:
            print(f"\nGeometric mean against {other}: {statistics.geometric_mean(ratios):.2f}")
    if args.csv:
        run = {"dtype": "float16" if args.half else "float32"}
        run |= {"rounds": args.rounds, "seconds": args.seconds}
        result_files.append(args.csv, [{**run, "workload": n, **rows[n]} for n in rows])


if __name__ == "__main__":
    main()
