"""What an action of a schedule waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Port, Schedule


@dataclass(frozen=True)
class Needs:
    """The actions whose results each action of a schedule uses."""

    schedule: Schedule

    def of(self, action: Action) -> Iterator[Action]:
        """Yields them; an action that a schedule lacks is left out."""
        if action.kind is Kind.UPDATE:
            return
        for port in self.schedule.ports_of(action):
            for producer in self._producers[port]:
                needed = self._action_at.get((producer, action.micro_batch))
                if needed is not None and needed != action:
                    yield needed

    @cached_property
    def _producers(self) -> defaultdict[Port, list[Port]]:
        found: defaultdict[Port, list[Port]] = defaultdict(list)
        for producer, consumer in self.schedule.links:
            found[consumer].append(producer)
        return found

    @cached_property
    def _action_at(self) -> dict[tuple[Port, int], Action]:
        """The action that runs each port for each micro-batch."""
        return {
            (port, action.micro_batch): action
            for action in self.schedule.slot_of
            if action.kind is not Kind.UPDATE
            for port in self.schedule.ports_of(action)
        }
