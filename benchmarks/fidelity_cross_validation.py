"""Errors of predicted speeds for model families that no constant was fitted to.

Each family of models is left out in turn. The constants that are fitted to some of its rows
(`machine/time_numbers.py` names them) are fitted to their other rows alone, and the family is
predicted with them. If a constant has no other row, it takes the value that holds without a fit. A
setting that a row's own figure chose counts as fitted, so that such a row is predicted with the
other choice (`OTHER_SETTINGS` in `time_rows.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from fidelity_time import Captured, capture
from time_rows import OTHER_SETTINGS, Choice, TimeRow

from poptorch_emu.machine.spread import Subject
from poptorch_emu.machine.time_numbers import CONSTANTS, NUMBERS

# Values that a fit may choose from. The first one holds without any fit: a network of 12.5 GB/s, a
# call that takes no time, and a step of a ring that takes as long as in one machine.
GRIDS: dict[str, tuple[float, ...]] = {
    "host_bytes_per_second": (12.5e9, *(1e8 * n for n in range(10, 31)), 4e9, 6e9),
    "call_seconds": (0.0, *(1e-3 * n / 20 for n in range(1, 41))),
    "machine_hop_seconds": (NUMBERS.hop_seconds, *(1e-6 * n for n in range(4, 61, 4))),
}


@dataclass(frozen=True)
class Line:
    """The time of one item as a linear function of a constant; a rate enters as its inverse.

    The time is linear while the same IPU is the slowest.
    """

    published: float
    usual: float
    slope: float
    name: str

    @classmethod
    def of(cls, case: Captured, name: str) -> Line:
        """Returns the line of a row, planned with the constant in use and at the grid's end."""
        usual, last = item_time(case), GRIDS[name][-1]
        time = item_time(case, {name: last})
        return cls(case.published_time, usual, (time - usual) / _change(name, last), name)

    def log_error(self, value: float) -> float:
        """Returns the logarithm of the predicted to the published time."""
        return math.log((self.usual + self.slope * _change(self.name, value)) / self.published)


def _change(name: str, value: float) -> float:
    """Returns the difference to the constant in use."""
    values = value, getattr(NUMBERS, name)
    new, old = (1 / each for each in values) if name.endswith("per_second") else values
    return float(new - old)


def item_time(case: Captured, values: Mapping[str, float] | None = None) -> float:
    """Returns the predicted time of an item, or the cycles of a call."""
    found = case.predicted(replace(NUMBERS, **values) if values else NUMBERS)
    return found if case.row.is_cycles else 1 / found


def fitted(name: str, cases: Sequence[Captured]) -> float:
    """Returns the value of a constant with the least mean absolute logarithmic error."""
    lines = [Line.of(case, name) for case in cases]
    if not lines:
        return GRIDS[name][0]
    return min(GRIDS[name], key=lambda value: mean(abs(line.log_error(value)) for line in lines))


@dataclass(frozen=True)
class Held:
    """A row that was predicted without its family.

    Attributes:
        row: the row.
        numbers: constants that are fitted anew, because they were fitted to rows of the family.
        log_error: logarithm of the predicted to the published time of an item, with the other
            setting if the row's own figure chose one.
        known_error: the same with the settings of the row.
        amounts: seconds of a step by subject.
    """

    row: TimeRow
    numbers: Mapping[str, float]
    log_error: float
    known_error: float
    amounts: Mapping[Subject, float]

    @property
    def error(self) -> float:
        """Relative error of the published quantity; positive if the prediction is too high."""
        return math.exp(self.log_error if self.row.is_cycles else -self.log_error) - 1


def held_out(cases: Sequence[Captured]) -> list[Held]:
    """Returns all rows, each predicted with constants that no row of its family was used for."""
    return [
        held(case, cases, numbers)
        for family in dict.fromkeys(case.row.family for case in cases)
        for numbers in [without(family, cases)]
        for case in cases
        if case.row.family == family
    ]


def without(family: str, cases: Sequence[Captured]) -> dict[str, float]:
    """Returns the constants that have rows in a family, fitted to their other rows."""
    found = {}
    for name in GRIDS:
        rows = [case for case in cases if case.row.name.startswith(CONSTANTS[name].fitted_to)]
        others = [case for case in rows if case.row.family != family]
        if len(others) < len(rows):
            found[name] = fitted(name, others)
    return found


def held(case: Captured, cases: Sequence[Captured], numbers: Mapping[str, float]) -> Held:
    """Returns a row, predicted with constants that were fitted to other families."""
    other = case
    for setting in OTHER_SETTINGS:
        if setting.row.name == case.row.name and setting.choice is Choice.OWN_FIGURE:
            other = recaptured(setting.row, cases)
    errors = (math.log(item_time(each, numbers) / case.published_time) for each in (other, case))
    return Held(case.row, numbers, *errors, case.amounts())


def recaptured(row: TimeRow, cases: Sequence[Captured]) -> Captured:
    """Returns a row with another setting; its model is traced only if it differs."""
    same = [case for case in cases if (case.row.name, case.row.build) == (row.name, row.build)]
    return Captured(row, same[0].request, same[0].inventory) if same else capture(row)
