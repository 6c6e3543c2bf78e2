"""Measures the cost of `enableProfiling`: calls of one model with and without it, in turns.

Both kinds of calls run in one process, because the times of the same calls differ more between
processes than profiling costs. Two figures measure the cost:

- ratio: time of a call with profiling, divided by the time without it, for CPU and wall-clock
  time. If other programs run, only many turns can resolve a percent.
- sum: the work of profiling is timed separately and compared with the CPU time of a call: the
  thread that writes, the data that each call hands over, and for each event two clock reads and
  one row in the engine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from models import CASES

import poptorch_emu as poptorch

# Calls before the timed ones, so that the first calls, which are recorded whole, are over.
_WARM_UP = 60
# Assumed time of one event in the engine: a lock, two clock reads (40 ns each) and 64 bytes.
_SECONDS_OF_AN_EVENT = 0.15e-6

Clocks = tuple[float, float]


def profiled(name: str, folder: str) -> tuple[poptorch.PoplarExecutor, tuple[torch.Tensor, ...]]:
    """Returns a model with profiling, and the arguments of its call."""
    torch.manual_seed(0)
    case = CASES[name]
    options = poptorch.Options().deviceIterations(case.iterations).enableProfiling(folder)
    options.showCompilationProgressBar(False)
    model, batch = case.make(), case.batch(case.samples)
    if case.make_optimizer is None:
        return poptorch.inferenceModel(model.eval(), options), batch
    options.Training.gradientAccumulation(case.accumulation)
    return poptorch.trainingModel(model, options, case.make_optimizer(model.parameters())), batch


def clocks(call: Callable[[], object], num_calls: int) -> Clocks:
    """Returns CPU and wall-clock time of a call, in seconds."""
    start, processors = time.perf_counter(), time.process_time()
    for _ in range(num_calls):
        call()
    return (
        (time.process_time() - processors) / num_calls,
        (time.perf_counter() - start) / num_calls,
    )


def costs(name: str, rounds: int, seconds: float) -> tuple[str, ...]:
    """Returns a row of the table for a model; a round takes about twice `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        model, batch = profiled(name, folder)

        def call() -> object:
            return model(*batch)

        clocks(call, 3)
        measurement, session = model._on_device.measurement, model._on_device.device.session
        hand_over, hand_over_seconds, num_events = session.after_call, 0.0, 0

        def timed_hand_over(*call: object) -> None:
            nonlocal hand_over_seconds
            start = time.thread_time()
            hand_over(*call)
            hand_over_seconds += time.thread_time() - start

        def turn(is_profiling: bool, num_calls: int) -> Clocks:
            session._executor.set_tracing(is_profiling)
            session.after_call = timed_hand_over if is_profiling else lambda *_: None
            return clocks(call, num_calls)

        num_calls = max(2, int(seconds / turn(False, 5)[1]))
        turn(True, max(0, min(_WARM_UP, 5 * num_calls)))
        measurement.profile.run()
        writer = time.pthread_getcpuclockid(measurement.profile._thread.ident)
        written, hand_over_seconds = time.clock_gettime(writer), 0.0
        with_it, without = [], []
        for number in range(rounds):
            for is_profiling in (number % 2 == 0, number % 2 == 1):
                (with_it if is_profiling else without).append(turn(is_profiling, num_calls))
        measurement.profile.run()
        written = time.clock_gettime(writer) - written
        session._executor.set_tracing(True)
        session.after_call = lambda *_: None
        session.take_events()
        call()
        num_events = len(session.take_events())
        session.after_call = hand_over
        model.destroy()
    ratios = [
        statistics.median(a[clock] / b[clock] for a, b in zip(with_it, without, strict=True))
        for clock in (0, 1)
    ]
    of_a_call = (written + hand_over_seconds) / (rounds * num_calls)
    share = of_a_call + num_events * _SECONDS_OF_AN_EVENT
    milliseconds = 1e3 * statistics.median(b[1] for b in without)
    processors = statistics.median(b[0] for b in without)
    return (
        name,
        f"{milliseconds:.1f}",
        str(num_events),
        *(f"{ratio:.3f}" for ratio in ratios),
        f"{100 * share / processors:.2f}",
    )


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of half a round")
    args = parser.parse_args()
    print("| model | ms of a call | events | ratio, processors | ratio, wall | sum in % |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in args.models:
        print(f"| {' | '.join(costs(name, args.rounds, args.seconds))} |", flush=True)


if __name__ == "__main__":
    main()
