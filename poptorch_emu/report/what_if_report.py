"""The points of a sweep, as a table for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from poptorch_emu.machine.spread import Figure
from poptorch_emu.printed.records import Record
from poptorch_emu.printed.terminal import (
    fitted_table,
    html_lines,
    html_table,
    terminal_width,
    wrapped,
)
from poptorch_emu.report.likely import likely_text
from poptorch_emu.report.printed_report import PrintedReport


@dataclass(frozen=True)
class Point(Record):
    """One choice of settings, with its costs.

    Attributes:
        settings: (name, value) of each setting, in the order of the sweep.
        throughput: rows each second; `None` if it cannot run, or too much is unknown.
        step_seconds: duration of one call in seconds.
        fits: "yes", "close" or "no"; "" if it cannot run.
        limit: the limiting cause, or the reason why it cannot run.
        speed: the throughput with its interval.
    """

    settings: tuple[tuple[str, object], ...]
    throughput: float | None
    step_seconds: float
    fits: str
    limit: str
    speed: Figure | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SweepReport(PrintedReport):
    """All choices of a sweep; the last setting varies fastest. It can be printed."""

    points: tuple[Point, ...]

    def best(self) -> Point:
        """Returns the fastest point that fits; if none does, the fastest that may fit (`close`).

        Raises:
            ValueError: no point fits or may fit.
        """
        return fastest(self.points)

    def __str__(self) -> str:
        """Returns a line for each point: settings, speed, interval, verdict and limit."""
        columns = terminal_width()
        rows = self._rows()
        notes = [line for text in self._notes() for line in wrapped(text, columns)]
        *head, limits = zip(*rows, strict=True)
        beside = columns - sum(2 + max(map(len, column)) for column in head)
        if max(map(len, limits)) <= beside:
            return "\n".join([*fitted_table(rows, 0, columns), *notes])
        # Limits that do not fit beside the other columns go below the table, each one once.
        number = {text: f"[{n}]" for n, text in enumerate(dict.fromkeys(limits[1:]), start=1)}
        shown = (limits[0], *(number[text] for text in limits[1:]))
        lines = fitted_table(list(zip(*head, shown, strict=True)), 0, columns)
        for text, name in number.items():
            lines += wrapped(f"{name} {text}", columns)
        return "\n".join([*lines, *notes])

    def _repr_html_(self) -> str:
        """Returns the same content for a notebook."""
        return html_table(self._rows(), 0) + "".join(html_lines([text]) for text in self._notes())

    def _rows(self) -> list[list[str]]:
        names = [name for name, _ in self.points[0].settings] if self.points else []
        rows = [[*names, "rows/s", "likely", "fits", "limited by"]]
        alike = about_best(self.points)
        for point in self.points:
            speed = "-" if point.throughput is None else f"{point.throughput:,.1f}"
            likely = likely_text(point.speed) + (" *" if point in alike else "")
            rows.append([*_values(point), speed, likely, point.fits, point.limit])
        return rows

    def _notes(self) -> list[str]:
        notes = []
        if about_best(self.points):
            notes.append("* about the same: the model cannot tell which is the fastest")
        if closer := faster_but_close(self.points):
            notes.append(close_text(", ".join(_values(point)) for point in closer))
        return notes


def _values(point: Point) -> list[str]:
    return [str(getattr(value, "name", value)) for _, value in point.settings]


class Choice(Protocol):
    """A choice that has a throughput, and may or may not fit."""

    @property
    def throughput(self) -> float | None: ...  # noqa: D102
    @property
    def fits(self) -> str: ...  # noqa: D102
    @property
    def speed(self) -> Figure | None: ...  # noqa: D102


C = TypeVar("C", bound=Choice)


def fastest(choices: Iterable[C]) -> C:
    """Returns the fastest choice that fits; if none does, the fastest that may fit.

    Raises:
        ValueError: no choice fits or may fit.
    """
    known = [one for one in choices if one.throughput is not None]
    for verdict in ("yes", "close"):
        fitting = [one for one in known if one.fits == verdict]
        if fitting:
            return max(fitting, key=lambda one: one.throughput or 0.0)
    raise ValueError(
        "No choice fits. Recompute activations, use a smaller micro-batch or more IPUs."
    )


def about_best(choices: Sequence[C]) -> tuple[C, ...]:
    """Returns the choices that may fit and that the model cannot tell from the fastest one.

    The tuple is empty if the fastest one is alone, or if no choice fits.
    """
    fitting = [one for one in choices if one.speed is not None and one.fits in ("yes", "close")]
    best = fastest(fitting).speed if fitting else None
    alike = [one for one in fitting if best and one.speed and one.speed.is_about(best)]
    return tuple(alike) if len(alike) > 1 else ()


def faster_but_close(choices: Sequence[C]) -> tuple[C, ...]:
    """Returns the choices that are faster than the fastest one that fits, and may fit."""
    speeds = [one.throughput or 0.0 for one in choices if one.fits == "yes"]
    most = max(speeds, default=math.inf)
    return tuple(one for one in choices if one.fits == "close" and (one.throughput or 0.0) > most)


def close_text(names: Iterable[str]) -> str:
    """Returns a sentence about choices that are faster than the best one, but may not fit."""
    return f"Faster than the best that fits, but may not fit: {'; '.join(names)}."
