"""Computes the effect of each constant of the time model, and of each assumed setting, on rows.

A constant that is switched off takes no time. An assumption is replaced by the setting without it.
For the cycles of a program, the constant is also fitted again without one family of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fidelity_time import Captured, capture
from time_rows import OTHER_SETTINGS, Kind

from poptorch_emu.machine.time_numbers import NUMBERS

_STEP_GRID = range(300, 3001, 100)
_NO_TIME = 1e15

# Values that switch constants off. Constants that affect no published row (gateways between pods,
# streams without prefetching) are not listed.
WITHOUT = {
    "step_cycles": 0.0,
    "inference_step_cycles": NUMBERS.step_cycles,
    "call_seconds": 0.0,
    "host_sync_seconds": 0.0,
    "host_bytes_per_second": _NO_TIME,
    "output_bytes_per_second": _NO_TIME,
    "remote_sync_seconds": 0.0,
    "remote_bytes_per_second": _NO_TIME,
    "machine_remote_bytes_per_second": _NO_TIME,
    "link_sync_cycles": 0.0,
    "pair_bytes_per_second": _NO_TIME,
    "ladder_bytes_per_second": _NO_TIME,
    "ring_bytes_per_second": _NO_TIME,
    "hop_seconds": 0.0,
    "machine_hop_seconds": NUMBERS.hop_seconds,
}


def constant_figures(cases: Sequence[Captured]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_constants.csv`: errors by kind, and the largest change."""
    usual = {case.row.name: case.error() for case in cases}
    changed = {"most changed": "", "without": "", "with": ""}
    yield {"number": "all as it is", "value": "", **_medians(usual, cases), **changed}
    for name, value in WITHOUT.items():
        numbers = replace(NUMBERS, **{name: value})
        errors = {case.row.name: case.error(numbers) for case in cases}
        most = max(usual, key=lambda row: abs(errors[row] - usual[row]))
        yield {
            "number": name,
            "value": f"{value:g}",
            **_medians(errors, cases),
            "most changed": most,
            "without": percent(errors[most]),
            "with": percent(usual[most]),
        }


def setting_figures() -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_settings.csv`: predictions with another setting."""
    for setting in OTHER_SETTINGS:
        yield {
            "row": setting.row.name,
            "taken": setting.taken,
            "otherwise": setting.otherwise,
            "predicted": capture(setting.row).figures()["predicted"],
            "error before": setting.before,
        }


def percent(error: float) -> str:
    """Returns an error in percent, as the files contain it."""
    return f"{100 * error:+.0f}"


def _medians(errors: Mapping[str, float], cases: Sequence[Captured]) -> dict[str, object]:
    """Returns the median error of each kind, in percent, and the worst error of the goals."""
    goals = [abs(errors[case.row.name]) for case in cases if case.row.is_goal]
    kinds = {
        kind.value: [abs(errors[case.row.name]) for case in cases if case.row.kind is kind]
        for kind in Kind
    }
    return {
        **{kind: f"{100 * median(own):.1f}" for kind, own in kinds.items()},
        "goals": f"{100 * median(goals):.1f}",
        "worst goal": f"{100 * max(goals):.0f}",
    }


@dataclass(frozen=True)
class _Line:
    """The time of an item as a linear function of a program's cycles, between two grid points.

    The time is linear as long as the same IPU is the slowest.
    """

    published: float
    first: float
    per_cycle: float

    @classmethod
    def of(cls, case: Captured) -> _Line:
        """Returns the line through the times at both ends of the grid of cycles."""
        first, last = (
            1 / case.predicted(replace(NUMBERS, step_cycles=step))
            for step in (_STEP_GRID[0], _STEP_GRID[-1])
        )
        per_cycle = (last - first) / (_STEP_GRID[-1] - _STEP_GRID[0])
        return cls(case.row.published, first, per_cycle)

    def error(self, step: float) -> float:
        """Returns the relative error of the prediction; positive if it is too high."""
        time_of_item = self.first + self.per_cycle * (step - _STEP_GRID[0])
        return 1 / time_of_item / self.published - 1


def family_figures(cases: Sequence[Captured]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_families.csv`: errors of families left out of the fit."""
    goals = [case for case in cases if case.row.is_goal]
    lines = {case.row.name: _Line.of(case) for case in goals}
    table = {
        step: {name: abs(line.error(step)) for name, line in lines.items()} for step in _STEP_GRID
    }
    for family in sorted({case.row.family for case in goals}):
        seen = [case.row.name for case in goals if case.row.family != family]
        others = [case.row.name for case in goals if case.row.family == family]
        best = min(table, key=lambda step: median(table[step][name] for name in seen))
        errors = [abs(lines[name].error(best)) for name in others]
        yield {
            "family": family,
            "rows": len(others),
            "fit": best,
            "median error": f"{100 * median(errors):.1f}",
            "worst": f"{100 * max(errors):.0f}",
        }
