"""The predicted timeline of each IPU, for terminals and notebooks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from poptorch_emu.plan.time.time_plan import Event
from poptorch_emu.printed.terminal import (
    fitted_table,
    html_lines,
    html_table,
    terminal_width,
    wrapped,
)
from poptorch_emu.report.pictures import Box, axes_or_new, draw_boxes
from poptorch_emu.report.terms import TERMS, WORD_OF_EVENT, WORK
from poptorch_emu.report.timeline_svg import timeline_svg

_IDLE = TERMS["bubble"].letter


class TimelineReport(tuple[Event, ...]):
    """The events of a window, by begin, which can be printed and drawn (modelled)."""

    __slots__ = ()

    def __str__(self) -> str:
        """Returns a line for each IPU, with a letter in each interval for its main kind of work.

        A table below shows the time of each IPU for each kind of work.
        """
        if not self:
            return "no events"
        columns = terminal_width()
        lines = [*self._bars(columns), *wrapped(self._legend(), columns), ""]
        return "\n".join([*lines, *fitted_table(self._rows(), 1, columns)])

    def _repr_html_(self) -> str:
        """Returns a picture for a notebook, and a table with the time for each kind of work."""
        if not self:
            return html_lines(["no events"])
        return timeline_svg(self, self._ipus(), self._end()) + html_table(self._rows(), 1)

    def plot(self, axes: Any = None) -> Any:
        """Draws IPUs over time, to scale, in milliseconds, with micro-batch numbers that fit.

        Arguments, result and errors are those of `SchedulePlan.plot`.
        """
        ipus = self._ipus()
        axes = axes_or_new(axes, 12.0, 1.2 + 0.42 * max(1, len(ipus)))
        shortest = self._end() / 60
        boxes = []
        for event in self:
            length, kind = event.end_seconds - event.begin_seconds, WORD_OF_EVENT[event.kind]
            is_numbered = length >= shortest and kind in (
                "forward",
                "recompute",
                "backward",
                "weights",
            )
            text = str(event.micro_batch) if is_numbered else ""
            lane = ipus.index(event.ipu)
            boxes.append(Box(lane, 1e3 * event.begin_seconds, 1e3 * length, kind, text))
        draw_boxes(axes, boxes, [f"IPU {ipu}" for ipu in ipus])
        axes.set_xlim(0, 1e3 * self._end() or 1)
        axes.set_xlabel("milliseconds, by the model of the machine")
        return axes

    def _ipus(self) -> list[int]:
        return sorted({event.ipu for event in self})

    def _end(self) -> float:
        return max((event.end_seconds for event in self), default=0.0)

    def _bars(self, columns: int) -> list[str]:
        ipus, end = self._ipus(), self._end()
        label = max(len(f"IPU {ipu}") for ipu in ipus) + 2
        num_bins = columns - label
        last = f"{1e3 * end:.3g} ms"
        lines = [f"{'':{label}}0{last:>{num_bins - 1}}"]
        return lines + [f"{f'IPU {ipu}':{label}}{self._bar(ipu, num_bins, end)}" for ipu in ipus]

    def _bar(self, ipu: int, num_bins: int, end: float) -> str:
        """Returns a letter for each bin: the kind that takes most of it, or idleness."""
        bins: list[dict[str, float]] = [defaultdict(float) for _ in range(num_bins)]
        scale = num_bins / end if end else 0.0
        for event in self:
            if event.ipu != ipu:
                continue
            begin, stop = event.begin_seconds * scale, event.end_seconds * scale
            for number in range(int(begin), min(int(stop), num_bins - 1) + 1):
                part = min(stop, number + 1) - max(begin, number)
                bins[number][TERMS[WORD_OF_EVENT[event.kind]].letter] += part
        for spent in bins:
            spent[_IDLE] = 1 - sum(spent.values())
        return "".join(max(spent, key=lambda letter: spent[letter]) for spent in bins)

    def _legend(self) -> str:
        kinds = {WORD_OF_EVENT[event.kind] for event in self}
        names = [f"{TERMS[kind].letter} {kind}" for kind in WORK if kind in kinds]
        return ", ".join([*names, f"{_IDLE} idle or not drawn"])

    def _rows(self) -> list[list[str]]:
        """Returns milliseconds by kind for each IPU, without the events that are left out."""
        ipus = self._ipus()
        spent: dict[tuple[str, int], float] = defaultdict(float)
        for event in self:
            kind = WORD_OF_EVENT[event.kind]
            spent[kind, event.ipu] += 1e3 * (event.end_seconds - event.begin_seconds)
        rows = [["ms", *(f"IPU {ipu}" for ipu in ipus)]]
        for kind in WORK:
            if any((kind, ipu) in spent for ipu in ipus):
                rows.append([kind, *(f"{spent[kind, ipu]:.3f}" for ipu in ipus)])
        return rows
