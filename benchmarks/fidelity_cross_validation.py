"""Errors of predicted speeds for model families that no constant was fitted to.

Each family of models is left out in turn. The numbers in `FITTED` are fitted to the other families,
and the left-out family is predicted with them. A setting that its source leaves open counts as
fitted if the row's own figure was used to choose it, so such a row is predicted with the other
choice (`OTHER_SETTINGS` in `time_rows.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from fidelity_time import Captured, capture
import numpy as np
from time_rows import OTHER_SETTINGS, Choice

from poptorch_emu.machine.time_numbers import FITTED, NUMBERS, TimeNumbers

# Values that a fit may choose from. The first one is what would be said without any fit: a program
# that starts as fast as in an inference, a network of 12.5 GB/s, a call that costs nothing, and a
# step of a ring that takes as long as inside one machine.
GRIDS: dict[str, tuple[float, ...]] = {
    "step_cycles": (NUMBERS.inference_step_cycles, *(float(n) for n in range(600, 3001, 100))),
    "host_bytes_per_second": (12.5e9, *(1e9 * n / 10 for n in range(10, 31, 1)), 4e9, 6e9),
    "call_seconds": (0.0, *(1e-3 * n / 20 for n in range(1, 41))),
    "machine_hop_seconds": (NUMBERS.hop_seconds, *(1e-6 * n for n in range(4, 61, 4))),
}
assert tuple(GRIDS) == FITTED
# A sum of absolute errors has flat valleys; two rounds of coordinate descent reach their floor.
_NUM_ROUNDS = 4


# A prediction is planned anew at every so many values of a grid; between them it is interpolated.
_STRIDE = 6
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Curve:
    """The time of one item as a sum of functions, one for each fitted number.

    The sum is exact as long as the same IPU is the slowest; the errors that are reported are
    planned anew.

    Attributes:
        published: time of an item in seconds, or cycles of a call.
        usual: predicted time with the numbers in use.
        changes: change of that time for each value of each grid, by the name of the number.
    """

    published: float
    usual: float
    changes: Mapping[str, Mapping[float, float]]

    @classmethod
    def of(cls, case: Captured) -> Curve:
        """Returns the curve of a row."""
        usual = _time(case, NUMBERS)
        changes = {}
        for name, grid in GRIDS.items():
            nodes = sorted({*grid[1::_STRIDE], grid[-1]} | {grid[0]})
            times = [_time(case, replace(NUMBERS, **{name: value})) - usual for value in nodes]
            at = np.interp(
                [_position(name, value) for value in grid],
                *_ascending([_position(name, value) for value in nodes], times),
            )
            changes[name] = dict(zip(grid, at.tolist(), strict=True))
        return cls(_as_time(case, case.row.published), usual, changes)

    def log_error(self, values: Mapping[str, float]) -> float:
        """Returns the logarithm of the predicted to the published time."""
        time = self.usual + sum(self.changes[name][value] for name, value in values.items())
        return math.log(max(time, _LEAST_SHARE * self.usual) / self.published)


def _position(name: str, value: float) -> float:
    """Returns a number so that time is linear in it: rates enter as their inverse."""
    return 1 / value if name.endswith("per_second") else value


def _ascending(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    pairs = sorted(zip(x, y, strict=True))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _time(case: Captured, numbers: TimeNumbers) -> float:
    return _as_time(case, case.predicted(numbers))


def _as_time(case: Captured, figure: float) -> float:
    return figure if case.row.is_cycles else 1 / figure


def fit(curves: Sequence[Curve]) -> TimeNumbers:
    """Returns the numbers of the least mean absolute logarithmic error over `curves`.

    Coordinate descent over the grids; of equal values the first one, so that a number which no
    curve depends on keeps the value of no fit.
    """
    values = {name: grid[0] for name, grid in GRIDS.items()}
    for _ in range(_NUM_ROUNDS):
        for name, grid in GRIDS.items():
            values[name] = min(
                grid,
                key=lambda value, name=name: round(
                    mean(abs(curve.log_error(values | {name: value})) for curve in curves), 9
                ),
            )
    return replace(NUMBERS, **values)


def cases_of_choices(cases: Sequence[Captured]) -> dict[str, Captured]:
    """Returns the cases with each setting that a row's own figure chose set to the other choice."""
    found = {case.row.name: case for case in cases}
    for setting in OTHER_SETTINGS:
        if setting.choice is Choice.OWN_FIGURE:
            found[setting.row.name] = capture(setting.row)
    return found


def cross_validation_figures(cases: Sequence[Captured]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_cross_validation.csv`, one for each published speed."""
    unbiased = cases_of_choices(cases)
    curves = {case.row.name: Curve.of(case) for case in cases}
    for family in dict.fromkeys(case.row.family for case in cases):
        numbers = fit([curves[case.row.name] for case in cases if case.row.family != family])
        for case in cases:
            if case.row.family == family:
                yield {
                    "row": case.row.name,
                    "family": family,
                    "kind": case.row.kind.value,
                    **{name: f"{getattr(numbers, name):g}" for name in FITTED},
                    "fitted error": f"{case.error():.4f}",
                    "cross-validated error": f"{unbiased[case.row.name].error(numbers):.4f}",
                }
