"""Walks through two runs in the order of our graph, and judges whether rounding explains them.

Each operation is judged by itself: the value of each run is compared with the exact result of the
operation *on that run's own inputs*. So a difference is found at its origin, and values that follow
from it are not mistaken for new differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from poptorch_emu.ir.text import type_text
from poptorch_emu.numbers.alignment import aligned_places
from poptorch_emu.numbers.pair import Pair
from poptorch_emu.numbers.position_walk import PositionWalk, WalkResults
from poptorch_emu.numbers.run import FIRST, VIEW, Direction, Run
from poptorch_emu.numbers.verdicts import (
    Difference,
    Judgement,
    NumbersComparison,
    Sample,
    Verdict,
    given_apart,
    relative_distance,
    same_bits,
    sample,
)

# Judges values outside of micro-batches, such as updates, by their numbers in the two runs.
Judge = Callable[[int, int], Judgement | None]


class Walk:
    """One walk through two runs of a model."""

    def __init__(self, pair: Pair, on_step: Callable[[], object] = lambda: None) -> None:
        """Prepares a walk.

        Args:
            pair: the two runs.
            on_step: function that is called after each value of each position.
        """
        self._pair, self._on_step = pair, on_step
        self._notebook = WalkResults(pair)

    def run(
        self,
        judge_updates: Judge = lambda ours, theirs: None,
        *,
        is_update_complete: bool = False,
    ) -> None:
        """Judges given values, then the values at each position, then the updates.

        Args:
            judge_updates: function that judges updated weights and states.
            is_update_complete: whether the other run has all tensors that its update changes, so
                that a tensor that only one run updates is a difference.
        """
        pair = self._pair
        self._walk_named(Direction.GIVEN, lambda ours, theirs: None)
        for ours, theirs in aligned_places(pair.ours.positions, pair.theirs.positions).items():
            PositionWalk(self._notebook, pair, ours, theirs).walk(self._on_step)
        self._walk_named(Direction.UPDATE, judge_updates)
        if is_update_complete:
            for run, other, whose in (
                (pair.ours, pair.theirs, "this"),
                (pair.theirs, pair.ours, "the other"),
            ):
                self._note_missing(run, other, f"Only {whose} run updates this tensor.")

    def _note_missing(self, run: Run, other: Run, reason: str) -> None:
        """Notes a tensor that `run` updates and `other` does not."""
        known = {value.name for value in other.values if value.direction is Direction.UPDATE}
        for number, value in enumerate(run.values):
            tensor = run.read(number, FIRST) if value.direction is Direction.UPDATE else None
            if tensor is not None and value.name not in known:
                text = type_text(tensor)
                texts = (text, "nothing") if run is self._pair.ours else ("nothing", text)
                difference = Difference(
                    value, FIRST, Verdict.DIFFERENT, Sample(*texts, (), math.nan, math.nan), reason
                )
                self._notebook.first.setdefault(Verdict.DIFFERENT, difference)

    def result(self, notes: Sequence[str] = ()) -> NumbersComparison:
        """Returns the result of the walk."""
        pair, found = self._pair, self._notebook
        begins = [v for v in found.first if v is not Verdict.FOLLOWS]
        verdict = max(begins, default=Verdict.EQUAL)
        seen = {n for n in pair.numbers.values() if pair.ours.values[n].kind != VIEW}
        missing = seen - {pair.numbers[node] for node in found.their_numbers}
        return NumbersComparison(
            verdict, found.first.get(verdict), found.modules, pair.ours.title, pair.theirs.title,
            len(found.compared), len(missing), tuple(notes),
        )  # fmt: skip

    def _walk_named(self, direction: Direction, judge: Judge) -> None:
        """Judges the values that exist once in a window, such as weights."""
        pair, observed = self._pair, set(self._pair.numbers.values())
        for number, value in enumerate(pair.ours.values):
            other = pair.matched.get(number)
            if value.direction is not direction or number in observed or other is None:
                continue
            ours, theirs = pair.ours.read(number, FIRST), pair.theirs.read(other, FIRST)
            if ours is None or theirs is None:
                continue
            if same_bits(ours, theirs):
                self._notebook.note(number, Verdict.EQUAL, 0.0)
                continue
            found = judge(number, other) or given_apart(ours, theirs)
            self._notebook.note(number, found.verdict, relative_distance(ours, theirs))
            if found.verdict not in self._notebook.first:
                shown = sample(ours, theirs)
                difference = Difference(value, FIRST, found.verdict, shown, found.reason)
                self._notebook.first[found.verdict] = difference
