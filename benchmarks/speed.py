"""Throughput and CPU time against plain loops and the tuned peers of `peers.py`, in turns.

Every candidate does the same updates on the same samples. The main figure is the ratio to the
fastest of all other candidates. A process warms up and reports the medians of several calls. Rounds
of processes take turns, and the table shows medians over the ratios of each round. Run it on a
quiet machine: eager PyTorch on several threads slows down greatly next to other work, which makes
the ratios too good. The CPU time of a sample hardly depends on other work; it is compared with
eager PyTorch on one thread. `--csv results/speed.csv` records the run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import peers
import result_files
import torch
from models import CASES, Case

import poptorch_emu as poptorch

# Each candidate with its name in the columns of the CSV file.
WORDS = {
    "poptorch_emu": "poptorch_emu",
    "eager": "eager",
    "eager, 1 thread": "eager_1_thread",
    "torch.compile": "compile",
    **{name: name.replace(", ", "_").replace(" ", "_").replace("-", "_") for name in peers.EXPERTS},
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
}
CANDIDATES = tuple(WORDS)
PEERS = tuple(name for name in CANDIDATES[1:] if name != "eager, 1 thread")
# Workloads whose ratios depend on the Python overhead of a call more than on computing.
SMALL = ("mlp", "embedding")
Measured = tuple[float, float]  # samples per second, CPU milliseconds per sample


def emulated_step(case: Case) -> Callable[[], object]:
    """Returns a function that runs one call on virtual IPUs."""
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
    """Returns a function that runs the plain PyTorch loop for the same work."""
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


def step_of(case: Case, candidate: str) -> Callable[[], object]:
    """Returns a function that runs one call of a candidate."""
    match candidate:
        case "poptorch_emu":
            return emulated_step(case)
        case _ if candidate in peers.EXPERTS:
            return peers.expert_step(case, peers.EXPERTS[candidate])
        case "onnxruntime":
            return peers.onnxruntime_step(case)
        case "openvino":
            return peers.openvino_step(case)
    return plain_step(case, candidate == "torch.compile")


def measure(name: str, candidate: str, seconds: float, in_half: bool) -> Measured:
    """Returns the medians over the calls within `seconds`."""
    case = CASES[name].in_half() if in_half else CASES[name]
    torch.manual_seed(0)
    if candidate == "eager, 1 thread":
        torch.set_num_threads(1)
    step = step_of(case, candidate)
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
    """Measures in a separate process; returns `None` if the candidate fails."""
    command = [sys.executable, __file__, "--measure", name, candidate, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{name}, {candidate}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    speed, cpu = done.stdout.split()[-2:]
    return float(speed), float(cpu)


def compare(name: str, rounds: int, candidates: list[str], options: list[str]) -> dict[str, object]:
    """Measures in turns, prints one line of the table and returns its figures by column."""
    results: dict[str, list[Measured]] = {}
    for _ in range(rounds):
        for candidate in candidates:
            if not peers.is_for(candidate, CASES[name]):
                continue
            value = run_process(name, candidate, options)
            if value is not None:
                results.setdefault(candidate, []).append(value)
    mine = results[CANDIDATES[0]]
    figures: dict[str, object] = {}
    speeds, ratios = {}, {}
    for candidate, theirs in results.items():
        word = WORDS[candidate]
        speeds[candidate] = statistics.median(speed for speed, _ in theirs)
        figures[f"{word}_samples_per_second"] = speeds[candidate]
        figures[f"{word}_cpu_ms_per_sample"] = statistics.median(cpu for _, cpu in theirs)
        if theirs is not mine:
            pairs = zip(mine, theirs, strict=False)
            ratios[candidate] = statistics.median(one / other for (one, _), (other, _) in pairs)
            figures[f"vs_{word}"] = ratios[candidate]
    if best := max((peer for peer in PEERS if peer in results), key=speeds.__getitem__, default=""):
        figures |= {"best_peer": WORDS[best], "vs_best": ratios[best]}
        figures["best_cpu_ms_per_sample"] = figures[f"{WORDS[best]}_cpu_ms_per_sample"]
    print(f"| {name} | {' | '.join(_cells(figures))} |", flush=True)
    return figures


# The columns of the printed table, with the format of their figures.
COLUMNS = {
    "poptorch_emu_samples_per_second": ",.0f",
    **{f"vs_{WORDS[peer]}": ".2f" for peer in PEERS},
    "best_peer": "",
    "vs_best": ".2f",
    "poptorch_emu_cpu_ms_per_sample": ".3f",
    "best_cpu_ms_per_sample": ".3f",
    "eager_1_thread_cpu_ms_per_sample": ".3f",
}


def _cells(figures: dict[str, object]) -> list[str]:
    return [
        format(figures[column], form) if column in figures else "-"
        for column, form in COLUMNS.items()
    ]


def print_means(rows: dict[str, dict[str, object]]) -> None:
    """Prints the geometric means of the ratios to each peer and to the best one."""
    for peer in (*PEERS, "best"):
        column = f"vs_{WORDS.get(peer, peer)}"
        for title, left_out in (("all", ()), ("without MLP and embedding", SMALL)):
            found = [r[column] for n, r in rows.items() if column in r and n not in left_out]
            if found:
                print(f"Geometric mean, {title}, vs {peer}: {statistics.geometric_mean(found):.2f}")


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="seconds that each process measures"
    )
    parser.add_argument("--half", action="store_true", help="weights and inputs in float16")
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "CANDIDATE"), help="internal")
    args = parser.parse_args()
    if args.measure:
        print(*measure(*args.measure, args.seconds, args.half))
        return
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; ratios of throughput.")
    for candidate in args.candidates:
        if missing := peers.lacks(candidate):
            print(f"{candidate} is left out; not installed: {missing}.")
    candidates = [name for name in args.candidates if not peers.lacks(name)]
    print(f"\n| model | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}")
    options = ["--seconds", str(args.seconds), *(["--half"] if args.half else [])]
    rows = {n: compare(n, args.rounds, candidates, options) for n in args.models}
    print_means(rows)
    if args.csv:
        run = {"dtype": "float16" if args.half else "float32"}
        run |= {"rounds": args.rounds, "seconds": args.seconds}
        result_files.append(args.csv, [{**run, "workload": n, **rows[n]} for n in rows])


if __name__ == "__main__":
    main()
