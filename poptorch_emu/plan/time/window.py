"""Duration of one window in closed form, computed from the cycles of its actions.

Source: PopART's pipeline transform for the number of pipeline cycles. Every cycle of a pipeline
lasts as long as its slowest IPU, because all IPUs of a replica synchronise at its end. That
includes the cycles in which the pipeline fills and empties. If a schedule is a table, an IPU waits
only for data that it needs (assumed, because PopART has no tables).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from poptorch_emu.config import TableConfig
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.free_run import free_run
from poptorch_emu.schedule.layout import enough_micro_batches, num_indices
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.schedule import WHOLE, Cell, Port, Schedule
from poptorch_emu.schedule.tables.named import make_table

Cycles = Callable[[Port], float]

_PIPELINED = (None, ScheduleKind.GROUPED, ScheduleKind.INTERLEAVED)


@dataclass(frozen=True)
class Window:
    """The micro-batches of an update, or of a call in inference.

    Attributes:
        kind: kind of the schedule; None if the schedule is a table.
        ipu_of_stage: index of the virtual IPU of each stage.
        level_of_stage: level of each stage, as in `Schedule`.
        num_micro_batches: number of micro-batches in the window.
        table: table of all micro-batches; None if the schedule is not a table.
        rule: rule that makes tables of the same kind for other numbers of micro-batches.
        slot_cycles: cycles of each slot of a pipeline, in a plan of time; 0 if the slots differ.
    """

    kind: ScheduleKind | None
    ipu_of_stage: tuple[int, ...]
    level_of_stage: tuple[int, ...]
    num_micro_batches: int
    is_training: bool
    table: Schedule | None = None
    rule: TableConfig | None = None
    slot_cycles: float = 0.0

    @property
    def name(self) -> str:
        """Name of the schedule or table, such as "grouped"."""
        return self.kind.value if self.kind else self.rule.name if self.rule else "own"

    @property
    def num_stages(self) -> int:
        """Number of forward stages."""
        return len(self.ipu_of_stage)

    @property
    def is_pipelined(self) -> bool:
        """Whether several stages work at the same time."""
        return self.kind in _PIPELINED

    @property
    def num_slots(self) -> int:
        """Number of slots of the micro-batches, without the slot of the update."""
        if self.table is not None:
            return self.table.num_slots - int(self.is_training)
        levels = 1 + max(self.level_of_stage or range(self.num_stages))
        if not self.is_pipelined:
            return self.num_micro_batches * num_indices(levels, self.is_training)
        per_batch = 2 if self.kind is ScheduleKind.INTERLEAVED and self.is_training else 1
        ramp = num_indices(self.num_stages, self.is_training) - 1
        return per_batch * self.num_micro_batches + ramp

    def period(self, cycles_of: Cycles) -> float:
        """Returns the cycles that one more micro-batch adds to a long window.

        All other cycles of the window fill and empty the pipeline.
        """
        cycles, most = self.cycles(cycles_of), self.num_micro_batches
        if not self.is_pipelined:
            return cycles / most
        if self.table is None:
            per_batch = 2 if self.kind is ScheduleKind.INTERLEAVED and self.is_training else 1
            return per_batch * self.length_of_slots(cycles_of)
        least = max(self.busy_cycles(cycles_of)) / most
        if self.rule is None or self.rule.rows:
            return least
        counts = 2 * self.num_stages, 3 * self.num_stages
        ends = [
            free_run(make_table(self.rule, self.num_stages, m, self.is_training), cycles_of).end
            for m in counts
        ]
        return min(cycles / most, max(least, (ends[1] - ends[0]) / (counts[1] - counts[0])))

    def schedule(self, most_micro_batches: int) -> Schedule:
        """Returns the schedule of such a window with at most `most_micro_batches` micro-batches.

        A table is returned whole, because the table of a shorter window may begin differently.
        """
        if self.table is not None:
            return self.table
        assert self.kind is not None, "what is no table has a kind"
        return make_schedule(
            self.kind,
            self.ipu_of_stage,
            min(self.num_micro_batches, most_micro_batches),
            self.is_training,
            self.level_of_stage,
        )

    def length_of_slots(self, cycles_of: Cycles) -> float:
        """Returns the cycles of one slot of a pipeline; 0 for other schedules."""
        if not self.is_pipelined or self.table is not None:
            return 0.0
        schedule = self.schedule(enough_micro_batches(self.num_stages))
        return max(
            self._cell_cycles(row, slot, cycles_of)
            for row in schedule.rows
            for slot in range(schedule.num_slots)
        )

    def _cell_cycles(self, row: tuple[Cell, ...], slot: int, cycles_of: Cycles) -> float:
        """Returns the cycles that a slot needs so that a cell fits.

        A pair of forward and backward (interleaved, last stage) may fill an empty slot behind it.
        """
        is_pair = self.kind is ScheduleKind.INTERLEAVED and _is_pair(row[slot])
        is_long = is_pair and not (slot + 1 < len(row) and _has_work(row[slot + 1]))
        return work(row[slot], cycles_of) / (2 if is_long else 1)

    def cycles(self, cycles_of: Cycles) -> float:
        """Returns the cycles of all micro-batches.

        Args:
            cycles_of: returns the cycles of one action at a port.
        """
        if self.table is not None:
            return free_run(self.table, cycles_of).end
        if self.is_pipelined:
            return self.num_slots * self.length_of_slots(cycles_of)
        schedule = self.schedule(1)
        slots = range(schedule.num_slots)
        one = sum(max(work(row[slot], cycles_of) for row in schedule.rows) for slot in slots)
        return self.num_micro_batches * one

    def bubble(self, cycles_of: Cycles) -> float:
        """Returns the share of the time that IPUs wait, without the updates."""
        busy, cycles = self.busy_cycles(cycles_of), self.cycles(cycles_of)
        return 1.0 - sum(busy) / (len(busy) * cycles) if cycles else 0.0

    def busy_cycles(self, cycles_of: Cycles) -> list[float]:
        """Returns the cycles that each virtual IPU works on all micro-batches."""
        whole = WHOLE if self.is_training else ()
        kinds = (whole,) * self.num_stages if self.table is None else self.table.kinds
        found: defaultdict[int, float] = defaultdict(float)
        for stage, ipu in enumerate(self.ipu_of_stage):
            found[ipu] += sum(cycles_of((kind, stage)) for kind in (Kind.FORWARD, *kinds[stage]))
        return [self.num_micro_batches * found[ipu] for ipu in sorted(found)]


def work(cell: Cell, cycles_of: Cycles) -> float:
    """Returns the cycles of a cell's actions, one after the other, without updates."""
    return sum(cycles_of((a.kind, a.stage)) for a in cell if a.kind is not Kind.UPDATE)


def _is_pair(cell: Cell) -> bool:
    """Returns whether a cell is the forward and then the backward of one micro-batch."""
    if len(cell) != 2:
        return False
    first, second = cell
    return second == Action(Kind.BACKWARD, first.stage, first.micro_batch)


def _has_work(cell: Cell) -> bool:
    return any(action.kind is not Kind.UPDATE for action in cell)
