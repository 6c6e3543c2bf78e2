"""What each fitted constant and each assumption of the model of time does to published rows.

A constant that is left out takes no time. An assumption is switched to what would be said without
it. Of the cycles of a program it is also told what a fit gives that has not seen one family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fidelity_time import Captured
from time_rows import Kind

from poptorch_emu.machine.time_numbers import NUMBERS, WITHOUT

_STEP_GRID = range(300, 3001, 100)


def constant_figures(cases: Sequence[Captured]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_constants.csv`: errors by kind, and of unseen families."""
    yield _errors("all as it is", "", {case.row.name: case.error() for case in cases}, cases)
    for name, value in WITHOUT.items():
        numbers = replace(NUMBERS, **{name: value})
        errors = {case.row.name: case.error(numbers) for case in cases}
        yield _errors(name, f"{value:g}", errors, cases)
    yield from _unseen_families([case for case in cases if case.row.is_goal])


def _errors(
    name: str, value: str, errors: dict[str, float], cases: Sequence[Captured]
) -> dict[str, object]:
    """Returns the median error of each kind, in percent, and the worst of the goals."""
    goals = [abs(errors[case.row.name]) for case in cases if case.row.is_goal]
    found: dict[str, object] = {"row": name, "value": value}
    for kind in Kind:
        own = [abs(errors[case.row.name]) for case in cases if case.row.kind is kind]
        found[kind.value] = f"{100 * median(own):.1f}" if own else ""
    return found | {
        "goals": f"{100 * median(goals):.1f}" if goals else "",
        "worst goal": f"{100 * max(goals):.0f}" if goals else "",
    }


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


def _unseen_families(goals: Sequence[Captured]) -> Iterator[dict[str, object]]:
    lines = {case.row.name: _Line.of(case) for case in goals}
    table = {
        step: {name: abs(line.error(step)) for name, line in lines.items()} for step in _STEP_GRID
    }
    for family in sorted({case.row.family for case in goals}):
        seen = [case.row.name for case in goals if case.row.family != family]
        others = [case.row.name for case in goals if case.row.family == family]
        if not seen:
            continue
        best = min(table, key=lambda step: median(table[step][name] for name in seen))
        errors = [abs(lines[name].error(best)) for name in others]
        yield {
            "row": f"without {family}, {len(others)} rows",
            "value": str(best),
            "goals": f"{100 * median(errors):.1f}",
            "worst goal": f"{100 * max(errors):.0f}",
        }
