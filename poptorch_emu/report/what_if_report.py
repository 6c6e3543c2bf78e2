"""The points of a sweep, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.plan.time.sweep import Sweep
from poptorch_emu.report.printed_report import PrintedReport
from poptorch_emu.report.terminal import fitted_table, html_table, terminal_width, wrapped


@dataclass(frozen=True)
class SweepReport(Sweep, PrintedReport):
    """A sweep that can be printed."""

    def __str__(self) -> str:
        """Returns a line for each point: settings, rows a second, whether it fits, what limits."""
        columns = terminal_width()
        rows = self._rows()
        *head, limits = zip(*rows, strict=True)
        beside = columns - sum(2 + max(map(len, column)) for column in head)
        if max(map(len, limits)) <= beside:
            return "\n".join(fitted_table(rows, 0, columns))
        # What does not fit beside the rest stands below, each reason once.
        number = {text: f"[{n}]" for n, text in enumerate(dict.fromkeys(limits[1:]), start=1)}
        shown = (limits[0], *(number[text] for text in limits[1:]))
        lines = fitted_table(list(zip(*head, shown, strict=True)), 0, columns)
        for text, name in number.items():
            lines += wrapped(f"{name} {text}", columns)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the same for a notebook."""
        return html_table(self._rows(), 0)

    def _rows(self) -> list[list[str]]:
        names = [name for name, _ in self.points[0].settings] if self.points else []
        rows = [[*names, "rows/s", "fits", "limited by"]]
        for point in self.points:
            speed = "-" if point.throughput is None else f"{point.throughput:,.1f}"
            values = (str(value) for _, value in point.settings)
            rows.append([*values, speed, point.fits, point.limit])
        return rows
