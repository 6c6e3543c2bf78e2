"""The row of one IPU while it is made."""

from __future__ import annotations

from collections import Counter

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Cell


class Row:
    """What an IPU runs in order; each kind of action of a stage takes the micro-batches in order.

    Attributes:
        cells: what was added.
        waiting: the backwards whose gradients of weights are still to come, the oldest first.
    """

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.waiting: list[tuple[int, int]] = []
        self._done: Counter[tuple[Kind, int]] = Counter()

    def forward(self, stage: int, times: int = 1) -> None:
        """Adds forwards of a stage."""
        for _ in range(times):
            self.cells.append((self._next(Kind.FORWARD, stage),))

    def backward(self, stage: int) -> None:
        """Adds a whole backward of a stage."""
        self.cells.append((self._next(Kind.BACKWARD, stage),))

    def inputs(self, stage: int) -> None:
        """Adds a backward of a stage, as far as the stage before needs it."""
        action = self._next(Kind.BACKWARD, stage)
        self.waiting.append((stage, action.micro_batch))
        self.cells.append((Action(Kind.BACKWARD_INPUTS, stage, action.micro_batch),))

    def weights(self, stage: int | None = None) -> None:
        """Adds the rest of the backward that waits longest, of a stage or of all; if any waits."""
        found = next((one for one in self.waiting if stage in (None, one[0])), None)
        if found is not None:
            self.waiting.remove(found)
            self.cells.append((Action(Kind.BACKWARD_WEIGHTS, *found),))

    def both(self, forward: int, backward: int) -> None:
        """Adds a forward of a stage and a whole backward of another, in one step."""
        actions = self._next(Kind.FORWARD, forward), self._next(Kind.BACKWARD, backward)
        self.cells.append(actions)

    def num_done(self, kind: Kind, stage: int) -> int:
        """Returns how many forwards or backwards of a stage there are, whole or begun."""
        return self._done[kind, stage]

    def _next(self, kind: Kind, stage: int) -> Action:
        self._done[kind, stage] += 1
        return Action(kind, stage, self._done[kind, stage] - 1)
