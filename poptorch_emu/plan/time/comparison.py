"""What different schedules would cost one model, as values."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.plan.time.window import window_of
from poptorch_emu.schedule.free_run import unit_lengths
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.stash import stash_depths


@dataclass(frozen=True)
class Candidate:
    """One schedule for a model.

    Attributes:
        name: of the schedule.
        num_stages: that the model is cut into.
        bubble: share of the time that IPUs wait, with a forward and each half of a backward of
            one length.
        bubble_by_cycles: by the cycles of the machine.
        throughput: rows each second; `None` if it cannot run, or too much is unknown.
        tile_bytes: of the fullest tile of all IPUs.
        most_stashed: micro-batches that a stage holds at most.
        fits: "yes", "close" or "no"; "" if it cannot run.
        problem: why it cannot run; "" if it can.
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

    @classmethod
    def of(cls, name: str, schedule: Schedule, time: TimePlan, tiles: TileMemory) -> Candidate:
        """Returns what a schedule costs, given time and memory."""
        window = window_of(time.grid)
        return cls(
            name,
            schedule.num_stages,
            window.bubble(unit_lengths),
            window.bubble(time.cycles_of),
            time.throughput,
            tiles.most_bytes,
            max(stash_depths(schedule)),
            tiles.worst_verdict,
        )


@dataclass(frozen=True)
class Comparison:
    """Schedules for one model, the fastest of those that fit first.

    Attributes:
        candidates: all of them; those that cannot run are last.
        num_ipus: of a replica.
        num_micro_batches: of a window.
        system: its name.
    """

    candidates: tuple[Candidate, ...]
    num_ipus: int
    num_micro_batches: int
    system: str

    def best(self) -> Candidate:
        """Returns the fastest schedule that fits.

        Raises:
            ValueError: none does.
        """
        fitting = [c for c in self.candidates if c.throughput is not None and c.fits != "no"]
        if not fitting:
            raise ValueError(
                "No schedule fits. Recompute activations, use a smaller micro-batch or more IPUs."
            )
        return max(fitting, key=lambda candidate: candidate.throughput or 0.0)
