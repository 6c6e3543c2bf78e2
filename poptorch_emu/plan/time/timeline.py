"""Timeline of each IPU in one window, computed from a plan of time alone.

A long window is drawn in three pieces: its first cycles, some in the middle and the last ones. The
cycles between them are all alike, so their times follow from the length of a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poptorch_emu.plan.time.time_plan import ActionTime, Event, TimePlan, UpdateTime
from poptorch_emu.plan.time.window import work
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.free_run import free_run
from poptorch_emu.schedule.layout import enough_micro_batches

# Largest number of micro-batches of a window that is drawn completely.
_FEW_MICRO_BATCHES = 24


def timeline(plan: TimePlan) -> tuple[Event, ...]:
    """Returns the events of one window, ordered by their beginning; the updates come last.

    An action begins with its slot, or as soon as its IPU has finished the actions before it.
    """
    return tuple(
        sorted(_Drawing(plan).events(), key=lambda event: (event.begin_seconds, event.ipu))
    )


class _Drawing:
    def __init__(self, plan: TimePlan) -> None:
        grid = plan.grid
        self._plan = plan
        self._window = grid
        self._few = max(_FEW_MICRO_BATCHES, 2 * enough_micro_batches(len(grid.ipu_of_stage)))
        self._schedule = self._window.schedule(self._few)
        # Number of micro-batches that the drawing omits in the middle.
        self._skipped = grid.num_micro_batches - self._schedule.num_micro_batches
        self._ipus = tuple(ipu.ipu for ipu in plan.ipus)
        self._end_cycles = self._window.cycles(self._plan.cycles_of)
        short = replace(self._window, num_micro_batches=self._schedule.num_micro_batches)
        # Cycles of the micro-batches that the drawing omits.
        self._skipped_cycles = self._end_cycles - short.cycles(self._plan.cycles_of)

    def events(self) -> Iterator[Event]:
        """Yields all events, from the table of a schedule or slot by slot, and then the updates."""
        yield from self._of_slots() if self._plan.grid.table is None else self._of_table()
        if self._plan.grid.is_training:
            for update in self._plan.updates:
                yield from self._update(update)

    def _of_table(self) -> Iterator[Event]:
        """Yields the events of a table; of a long one, only the first and last micro-batches."""
        count = self._schedule.num_micro_batches
        half = self._few // 2 if count > self._few else count
        for action, begin in free_run(self._schedule, self._plan.cycles_of).begins.items():
            if half <= action.micro_batch < count - half:
                continue
            ipu = self._ipus[self._schedule.ipu_of_stage[action.stage]]
            yield from self._action(ipu, action, begin)

    def _of_slots(self) -> Iterator[Event]:
        begins = list(self._slot_begins())
        for ipu, row in enumerate(self._schedule.rows):
            for slot, cell in enumerate(row):
                at = begins[slot]
                for action in cell:
                    if action.kind is Kind.UPDATE:
                        continue
                    late = self._is_late(action)
                    first = at + (self._skipped_cycles if late else 0.0)
                    number = action.micro_batch + (self._skipped if late else 0)
                    shown = Action(action.kind, action.stage, number)
                    yield from self._action(self._ipus[ipu], shown, first)
                    at += self._plan.cycles_of((action.kind, action.stage))

    def _is_late(self, action: Action) -> bool:
        """Returns whether an action is after the omitted part."""
        return action.micro_batch >= self._schedule.num_micro_batches // 2

    def _slot_begins(self) -> Iterator[float]:
        """Yields the beginning of each slot, in cycles."""
        length, at = self._plan.grid.slot_cycles, 0.0
        for slot in range(self._schedule.num_slots):
            yield slot * length if length else at
            at += max(work(row[slot], self._plan.cycles_of) for row in self._schedule.rows)

    def _action(self, ipu: int, action: Action, at: float) -> Iterator[Event]:
        for kind, stage in self._schedule.ports_of(action):
            for name, cycles in _parts(kind, self._plan.stages[stage].of(kind)):
                yield self._event(ipu, action, at, cycles, name)
                at += cycles

    def _update(self, update: UpdateTime) -> Iterator[Event]:
        """Yields the parts of an update, which begins on all IPUs at the same time."""
        at, index = self._end_cycles, self._ipus.index(update.ipu)
        action = Action(Kind.UPDATE, index, 0)
        for kind in ("reduce", "wait", "remote", "optimizer"):
            cycles = getattr(update, f"{kind}_cycles")
            if kind == "wait":
                at += cycles
            elif cycles:
                yield self._event(update.ipu, action, at, cycles, kind)
                at += cycles

    def _event(self, ipu: int, action: Action, at: float, cycles: float, kind: str) -> Event:
        clock = self._plan.clock_hz
        begin, end = at / clock, (at + cycles) / clock
        return Event(ipu, str(action), action.micro_batch, begin, end, kind)


def _parts(kind: Kind, time: ActionTime) -> Iterator[tuple[str, float]]:
    """Yields name and cycles of each part of an action in order, without empty parts."""
    is_forward = kind is Kind.FORWARD
    parts = [
        ("host", time.host_cycles if is_forward else 0.0),
        ("link", time.link_cycles),
        ("remote", time.remote_cycles),
        ("reduce", time.reduce_cycles),
        ("stash", 0.0 if is_forward else time.stash_cycles),
        ("recompute", time.recompute_cycles),
        (kind.word, time.operation_cycles - time.recompute_cycles),
        ("stash", time.stash_cycles if is_forward else 0.0),
        ("host", 0.0 if is_forward else time.host_cycles),
    ]
    return ((name, cycles) for name, cycles in parts if cycles)
