"""A builder for the row of one IPU."""

from __future__ import annotations

from collections import Counter

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Cell


class Row:
    """The actions of one IPU in order. Each method adds the next micro-batch of its stage.

    Attributes:
        cells: cells added so far.
        waiting: stage and micro-batch of each backward without gradients of weights, oldest first.
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
        """Adds the half of a backward that computes the gradients of inputs."""
        action = self._next(Kind.BACKWARD, stage)
        self.waiting.append((stage, action.micro_batch))
        self.cells.append((Action(Kind.BACKWARD_INPUTS, stage, action.micro_batch),))

    def weights(self, stage: int | None = None) -> None:
        """Adds the gradients of weights of the oldest backward that lacks them, if any.

        Args:
            stage: stage of that backward; `None` allows any stage.
        """
        found = next((one for one in self.waiting if stage in (None, one[0])), None)
        if found is not None:
            self.waiting.remove(found)
            self.cells.append((Action(Kind.BACKWARD_WEIGHTS, *found),))

    def both(self, forward: int, backward: int) -> None:
        """Adds a forward of a stage and a whole backward of another, in one step."""
        actions = self._next(Kind.FORWARD, forward), self._next(Kind.BACKWARD, backward)
        self.cells.append(actions)

    def num_done(self, kind: Kind, stage: int) -> int:
        """Returns the number of forwards or backwards of a stage so far; a first half counts."""
        return self._done[kind, stage]

    def _next(self, kind: Kind, stage: int) -> Action:
        self._done[kind, stage] += 1
        return Action(kind, stage, self._done[kind, stage] - 1)
