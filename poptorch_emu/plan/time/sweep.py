"""How long other settings of one model would take, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One choice of settings.

    Attributes:
        settings: name and value of each, in the order of the sweep.
        throughput: rows each second; `None` if it cannot run, or too much is unknown.
        step_seconds: of one call.
        fits: "yes", "close" or "no"; "" if it cannot run.
        limit: the limiting cause, or why it cannot run.
    """

    settings: tuple[tuple[str, object], ...]
    throughput: float | None
    step_seconds: float
    fits: str
    limit: str


@dataclass(frozen=True)
class Sweep:
    """All choices of a sweep.

    Attributes:
        points: in the order of the sweep, the last setting first to change.
    """

    points: tuple[Point, ...]

    def best(self) -> Point:
        """Returns the fastest point that fits.

        Raises:
            ValueError: none does.
        """
        fitting = [p for p in self.points if p.throughput is not None and p.fits != "no"]
        return max(fitting, key=lambda point: point.throughput or 0.0)
