"""Speeds that the model of time predicts, beside published ones; see `fidelity.py --time`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from time_rows import TIME_ROWS, TimeRow

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.timing import time_of
from poptorch_emu.emulator.estimates import captured
from poptorch_emu.machine.system import system_of
from poptorch_emu.machine.time_numbers import FITTED, NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.time_report import TimeReport

# What a constant is where it is left out: it takes no time.
_LEFT_OUT = {"step_cycles": 0.0, "host_bytes_per_second": 1e15, "call_seconds": 0.0}
_STEP_GRID = range(300, 3001, 100)


@dataclass(frozen=True)
class Captured:
    """A row whose model was traced once, to be timed under several numbers."""

    row: TimeRow
    request: Request
    inventory: Inventory
    seconds: float

    def plan(self, numbers: TimeNumbers = NUMBERS) -> TimePlan:
        """Returns how long a call takes."""
        return time_of(self.request, self.inventory, system_of(self.row.system), None, numbers)

    def predicted(self, numbers: TimeNumbers = NUMBERS) -> float:
        """Returns what was published, as predicted; a throughput even where it is rough."""
        plan = self.plan(numbers)
        if self.row.is_cycles:
            return plan.cycles - numbers.call_seconds * plan.clock_hz
        return plan.samples_per_step / plan.step_seconds * self.row.items_per_row

    def error(self, numbers: TimeNumbers = NUMBERS) -> float:
        """Returns by which part the prediction is too high."""
        return self.predicted(numbers) / self.row.published - 1


def capture(row: TimeRow) -> Captured:
    """Returns a row's model, traced on the meta device."""
    start = time.perf_counter()
    with torch.device("meta"):
        model, inputs = row.build()
    request, inventory = captured(model, inputs, {})
    model.destroy()
    return Captured(row, request, inventory, time.perf_counter() - start)


def print_times(names: Sequence[str], with_details: bool) -> None:
    """Prints a table in Markdown, and how good it is as a whole."""
    print("| row | model | published | predicted | error | limited by | unknown or rough |")
    print("|---|---|---:|---:|---:|---|---|")
    rows = [row for row in TIME_ROWS if not names or row.name.startswith(tuple(names))]
    found = []
    for row in rows:
        case = capture(row)
        found.append(case)
        plan = TimeReport.of(case.plan())
        cells = [
            row.name,
            row.what,
            f"{row.published:,.0f}",
            f"{case.predicted():,.0f}",
            f"{case.error():+.0%}",
            plan.bottleneck,
            "; ".join([*(f"{name} {share:.0%}" for name, share in plan.unknown), *plan.rough]),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        if with_details:
            print(f"\n{plan}\n", flush=True)
    goals = [case for case in found if case.row.is_goal]
    if goals:
        print(f"\n{summary([case.error() for case in goals])}")
    if not names:
        _print_constants(goals)


def summary(errors: Sequence[float]) -> str:
    """Returns how good predictions are as a whole."""
    sizes = [abs(error) for error in errors]
    near = sum(size <= 0.2 for size in sizes) / len(sizes)
    return (
        f"{len(sizes)} rows: median error {median(sizes):.1%}, {near:.0%} within 20 %, "
        f"worst {max(sizes):.0%}"
    )


@dataclass(frozen=True)
class _Line:
    """The time of an item as it grows with the cycles of a program, between two of them.

    It is a straight line as long as the same IPU is the slowest.
    """

    published: float
    first: float
    per_cycle: float

    @classmethod
    def of(cls, case: Captured) -> _Line:
        """Returns the line through the ends of the grid."""
        first, last = (
            1 / case.predicted(replace(NUMBERS, step_cycles=step))
            for step in (_STEP_GRID[0], _STEP_GRID[-1])
        )
        per_cycle = (last - first) / (_STEP_GRID[-1] - _STEP_GRID[0])
        return cls(case.row.published, first, per_cycle)

    def error(self, step: float) -> float:
        """Returns by which part the prediction is too high."""
        time_of_item = self.first + self.per_cycle * (step - _STEP_GRID[0])
        return 1 / time_of_item / self.published - 1


def _print_constants(goals: Sequence[Captured]) -> None:
    """Prints errors without each fitted constant, and of rows that a fit has not seen."""
    print("\n| left out | result |\n|---|---|")
    for name in FITTED:
        numbers = replace(NUMBERS, **{name: _LEFT_OUT[name]})
        errors = [case.error(numbers) for case in goals]
        print(f"| `{name}` | {summary(errors)} |", flush=True)
    print("\n| family that the fit of `step_cycles` has not seen | fit | its rows |")
    print("|---|---:|---|")
    lines = {case.row.name: _Line.of(case) for case in goals}
    table = {
        step: {name: abs(line.error(step)) for name, line in lines.items()} for step in _STEP_GRID
    }
    for family in sorted({case.row.family for case in goals}):
        seen = [case.row.name for case in goals if case.row.family != family]
        others = [case for case in goals if case.row.family == family]
        best = min(table, key=lambda step: median(table[step][name] for name in seen))
        errors = [lines[case.row.name].error(best) for case in others]
        print(f"| {family} | {best:,.0f} | {summary(errors)} |", flush=True)
