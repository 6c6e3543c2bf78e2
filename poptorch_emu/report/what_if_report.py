"""The points of a sweep, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.plan.time.what_if import Sweep
from poptorch_emu.text_table import to_table


@dataclass(frozen=True)
class SweepReport(Sweep):
    """A sweep that can be printed."""

    @classmethod
    def of(cls, sweep: Sweep) -> SweepReport:
        """Returns `sweep` with its table."""
        return cls(**vars(sweep))

    def __str__(self) -> str:
        """Returns a line for each point: settings, rows a second, whether it fits, what limits."""
        names = [name for name, _ in self.points[0].settings] if self.points else []
        rows = [[*names, "rows/s", "fits", "limited by"]]
        for point in self.points:
            speed = "-" if point.throughput is None else f"{point.throughput:,.1f}"
            values = (str(value) for _, value in point.settings)
            rows.append([*values, speed, point.fits, point.limit])
        return "\n".join(to_table(rows, num_left=0))
