"""Schedules of one model side by side, as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.machine.spread import Figure
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.printed.records import Record
from poptorch_emu.report.pictures import axes_or_new, label_points
from poptorch_emu.report.printed_report import PrintedReport, Table
from poptorch_emu.report.terms import TERMS
from poptorch_emu.report.what_if_report import (
    about_best,
    close_text,
    faster_but_close,
    fastest,
)
from poptorch_emu.schedule.free_run import unit_lengths
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.stash import stash_depths


@dataclass(frozen=True)
class Candidate(Record):
    """One schedule for a model, with its costs.

    Attributes:
        name: name of the schedule.
        num_stages: number of stages of the model.
        bubble: share of the time that IPUs wait, if a forward and each half of a backward take
            equally long.
        bubble_by_cycles: share of the time that IPUs wait, by the cycles of the machine.
        throughput: rows each second; `None` if it cannot run, or too much is unknown.
        tile_bytes: bytes of the fullest tile of all IPUs.
        most_stashed: largest number of micro-batches that a stage stashes.
        fits: "yes", "close" or "no"; "" if it cannot run.
        problem: reason why it cannot run; "" if it can.
        speed: the throughput with its interval.
    """

    name: str
    num_stages: int
    bubble: float = 0.0
    bubble_by_cycles: float = 0.0
    throughput: float | None = None
    tile_bytes: int = 0
    most_stashed: int = 0
    fits: str = ""
    problem: str = ""
    speed: Figure | None = field(default=None, repr=False)

    @classmethod
    def of(cls, name: str, schedule: Schedule, time: TimePlan, tiles: TileMemory) -> Candidate:
        """Returns a schedule with its costs by the plans of time and memory."""
        window = time.grid
        return cls(
            name,
            schedule.num_stages,
            window.bubble(unit_lengths),
            window.bubble(time.cycles_of),
            time.throughput,
            tiles.most_bytes,
            max(stash_depths(schedule)),
            tiles.worst_verdict,
            speed=time.speed,
        )


@dataclass(frozen=True)
class ComparisonReport(PrintedReport):
    """Schedules for one model, the fastest of those that fit first; printed and drawn (modelled).

    The table has a line for each schedule: stages, two bubbles, rows a second, how far the upper
    limit of their interval is, and memory. The first bubble supposes that a forward and each half
    of a backward take equally long; the second uses the cycles of the machine.

    Attributes:
        candidates: all schedules; those that cannot run are last.
        num_ipus: number of IPUs of a replica.
        num_micro_batches: number of micro-batches of a window.
        system: name of the system.
    """

    candidates: tuple[Candidate, ...]
    num_ipus: int
    num_micro_batches: int
    system: str

    def best(self) -> Candidate:
        """Returns the fastest schedule that fits; if none does, the fastest that may fit.

        Raises:
            ValueError: no schedule fits or may fit.
        """
        return fastest(self.candidates)

    def _parts(self, columns: int) -> list[str | Table]:
        return [Table(self._rows(), 1), *self._notes()]

    def plot(self, axes: Any = None) -> Any:
        """Draws the memory of the fullest tile against the bubble by the cycles of the machine.

        Arguments, result and errors are those of `SchedulePlan.plot`.
        """
        axes = axes_or_new(axes, 8.0, 5.0)
        shown = [candidate for candidate in self.candidates if not candidate.problem]
        points = [(one.bubble_by_cycles, one.tile_bytes / KIB, one.name) for one in shown]
        for candidate, (bubble, size, _) in zip(shown, points, strict=True):
            style = "full" if candidate.fits != "no" else "none"
            axes.plot(bubble, size, "o", color=TERMS["schedule"].colour, fillstyle=style)
        axes.set_xlabel("share of the time that IPUs wait")
        axes.set_ylabel("KiB of the fullest tile (empty circles do not fit)")
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        label_points(axes, points)
        return axes

    def _rows(self) -> list[list[str]]:
        head = ["schedule", "stages", "bubble", "by cycles", "rows/s", "likely", "stash", "KiB"]
        rows = [[*head, "fits"]]
        for one in self.candidates:
            if one.problem:
                rows.append([one.name, str(one.num_stages or "-"), *["-"] * len(head[1:])])
                continue
            number = "-" if one.throughput is None else f"{one.throughput:,.1f}"
            speed = number, _within(one.speed)
            shares = f"{one.bubble:.1%}", f"{one.bubble_by_cycles:.1%}"
            memory = str(one.most_stashed), f"{one.tile_bytes / KIB:.0f}"
            rows.append([one.name, str(one.num_stages), *shares, *speed, *memory, one.fits])
        return rows

    def _notes(self) -> list[str]:
        head = (
            f"{self.num_ipus} IPUs of {self.system}, {self.num_micro_batches} micro-batches; KiB "
            "is the memory of the fullest tile."
        )
        failed = (f"{one.name}: {one.problem}" for one in self.candidates if one.problem)
        alike = ", ".join(one.name for one in about_best(self.candidates))
        about = [f"The model cannot tell which of these is the fastest: {alike}."] if alike else []
        closer = [one.name for one in faster_but_close(self.candidates)]
        if closer:
            about.append(close_text(closer))
        return [head, *about, *failed]


def _within(speed: Figure | None) -> str:
    """Returns how far the upper limit of an interval is from its figure."""
    return "-" if speed is None else f"±{speed.interval[1] / speed.value - 1:.0%}"
